async def test_one(world, make_stable):
    (m,) = await make_stable(world, 1)
    assert (await m.synced()).assignment == b"0"
async def test_three(world, make_stable):
    ms = await make_stable(world, 3)
    assert [(await m.synced()).assignment for m in ms] == [b"0", b"1", b"2"]
    for m in ms: await m.heartbeat()
    d = await world.groups.describe_group("g"); print(d)
    await world.restart()
    assert await world.groups.describe_group("g") == d
