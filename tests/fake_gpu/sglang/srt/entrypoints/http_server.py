"""`launch_server` of the fake: it serves until it is killed, as SGLang's does."""

from sglang.srt.server_args import ServerArgs
from tests.fake_sglang import serve


def launch_server(server_args: ServerArgs) -> None:
    serve(server_args.arguments)
