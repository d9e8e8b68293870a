"""The coordinators: state that lives in an internal topic and answers when the topic has it."""
