"""Spark's own process is killed: whoever waits for its answer is told, also where something else holds its sockets open."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

from ottla.pipelines.jvm import Jvm
from support.waiting import wait_for


def test_a_question_ends_when_the_process_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with (
        socket.create_server(("127.0.0.1", 0)) as spark,
        socket.create_server(("127.0.0.1", 0)) as another,
        socket.create_connection(spark.getsockname()) as asking,
        socket.create_connection(another.getsockname()) as other,
        spark.accept()[0],  # stays open all the time, as where a helper has inherited it
        another.accept()[0] as others,
    ):
        answers: list[bytes] = []
        waiting = threading.Thread(target=lambda: answers.append(asking.recv(1)), daemon=True)
        jvm = Jvm(process, spark.getsockname())
        waiting.start()
        assert not jvm.ended()
        process.kill()
        wait_for(lambda: answers, "the question has ended")
        assert answers == [b""]
        assert jvm.ended(within=20)
        others.sendall(b"x")
        assert other.recv(1) == b"x"  # what leads elsewhere goes on
    process.communicate()
