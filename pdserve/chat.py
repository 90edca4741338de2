"""`pdserve chat`: a chat in the terminal, or with lines from a pipe.

A line is a message. /system TEXT sets the system message (alone: none), /reset forgets the chat, /quit or the end of
input ends. Ctrl-C stops the answer that is being written, which stays part of the chat as far as it got.
"""

import io
import sys
from pathlib import Path
from typing import Unpack

from client.errors import PdserveError
from client.options import ChatOptions, Message
from client.sync_client import Client
from pdserve.status import EXIT_OK, EXIT_UNREACHABLE, one_line

CONNECT_TIMEOUT_S = 5.0
PROMPT = "> "
COMMANDS = "/system TEXT, /reset, /quit"


def run_chat(
    address: str, *, ca_file: Path | None = None, system: str | None = None, **options: Unpack[ChatOptions]
) -> int:
    """Chats until the input ends. `options` go with every message. Returns the exit code."""
    _tolerate_other_encodings()
    try:
        client = Client(address, ca_file=ca_file)
    except (ValueError, OSError) as error:
        return _unreachable(address, error)
    with client:
        try:
            models = client.models(timeout_s=CONNECT_TIMEOUT_S)
        except PdserveError as error:
            return _unreachable(address, error)
        if sys.stdin.isatty():
            print(f"{models[0].id} at {address}; {COMMANDS}")
        Conversation(client, system, options).run()
    return EXIT_OK


def _tolerate_other_encodings() -> None:
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _unreachable(address: str, error: Exception) -> int:
    print(f"pdserve chat: no answer from the master at {address}: {one_line(error)}", file=sys.stderr)
    return EXIT_UNREACHABLE


class Conversation:
    def __init__(self, client: Client, system: str | None, options: ChatOptions) -> None:
        self._client = client
        self._system = system
        self._options = options
        self._messages: list[Message] = []
        self._is_over = False

    def run(self) -> None:
        while not self._is_over:
            try:
                self._take(input(PROMPT if sys.stdin.isatty() else "").strip())
            except KeyboardInterrupt:
                print()
            except EOFError:
                return

    def _take(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        match command:
            case "":
                return
            case "/quit":
                self._is_over = True
            case "/reset":
                self._messages.clear()
            case "/system":
                self._system = argument.strip() or None
            case _ if command.startswith("/"):
                print(f"{command} is no command; there are {COMMANDS}", file=sys.stderr)
            case _:
                self._answer(line)

    def _answer(self, text: str) -> None:
        """A message that got no answer at all is forgotten, so that the chat can go on."""
        self._messages.append({"role": "user", "content": text})
        written: list[str] = []
        try:
            with self._client.chat_stream(self._with_system(), **self._options) as deltas:
                for delta in deltas:
                    written.append(delta.text)
                    print(delta.reasoning_text + delta.text, end="", flush=True)  # shown, but not part of the answer
            print()
        except PdserveError as error:
            print(f"\n{one_line(error)}", file=sys.stderr)
        finally:
            if answer := "".join(written):
                self._messages.append({"role": "assistant", "content": answer})
            else:
                self._messages.pop()

    def _with_system(self) -> list[Message]:
        system: list[Message] = [] if self._system is None else [{"role": "system", "content": self._system}]
        return system + self._messages
