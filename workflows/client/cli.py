"""`dispatcher-agent`: the command line of an agent, or of whoever gives agents work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from workflows.client import __version__, commands, config, exits
from workflows.client.client import DispatcherClient
from workflows.client.errors import ApiProblem, ClientError, TemporaryError, UsageError
from workflows.client.http import TIMEOUT_SECONDS
from workflows.client.output import COLUMNS, Screen
from workflows.client.text import wrap
from workflows.client.views import present_state

DEFAULT_WAIT_SECONDS = 3600.0

EPILOG = f"""\
environment:
  {config.API_VARIABLE:<23} the server, {config.DEFAULT_API} if unset
  {config.TOKEN_VARIABLE:<23} who is calling
  {config.AGENT_VARIABLE:<23} stands for --agent
  {config.SESSION_VARIABLE:<23} stands for --session
  NO_COLOR                plain text on a terminal too

exit codes:
  0   done
  1   refused, or wrong usage
  2   the run is lost, over, or already claimed by another: stop working on it
  75  temporary, or the outcome is unknown: the same command may be repeated
"""
RUN_EPILOG = """\
the command:
  gets the input as JSON on standard input, and in its environment
  DISPATCHER_RUN_ID, DISPATCHER_WORKFLOW_TYPE, DISPATCHER_LEASE_NO,
  DISPATCHER_SESSION_ID and DISPATCHER_API
  may print lines like these on its standard output:
    ::progress 40 reading the sources
    ::usage {"model_id": "m", "input_tokens": 900, "output_tokens": 40}
  (usage: totals so far); its last line that is a JSON object is the output
  exits with 0 to complete the run, 75 to fail it for another attempt, else to
  fail it; the end of its standard error tells why
  is suspended while the run is paused, and ended (SIGTERM, 10 s later SIGKILL)
  when the run is lost or cancelled

SIGTERM or Ctrl-C claims nothing more and sends the command SIGTERM: if it
exits with 0 within 10 s the run completes, else it is given back.

exit codes with --once:
  0 completed, 1 failed, 2 lost, 75 given back, to be retried, or unknown
  (with --drain: 0 if every run completed)
"""
SHELLS = ("bash", "zsh", "fish")
OUTPUT_HELP = "JSON, or text, which becomes {'result': text}; - reads standard input, @FILE a file"


class Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=COLUMNS - 2, max_help_position=26)


class Parser(argparse.ArgumentParser):
    """Wrong usage is an error like any other (argparse would exit with 2, which means a lost run here)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments  # what follows is run's command
    screen = Screen(as_json="--json" in own)
    try:
        return _run(arguments, screen)
    except ClientError as error:
        screen.trouble(error, _explanation(error))
        return exits.exit_code(error)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except OSError as error:  # of our own output: the disk is full, say
        screen.trouble(ClientError(f"Can't write the output: {config.reason_of(error)}"))
        return exits.FAILED
    except SystemExit as exit_request:  # of --help and --version
        return exit_request.code if isinstance(exit_request.code, int) else exits.FAILED
    finally:
        screen.flush()


def _run(arguments: list[str], screen: Screen) -> int:
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.run is None:
        parser.error("No command was given")
    if args.run is commands.completion:
        return commands.completion(args, screen)
    with DispatcherClient(
        args.api,
        token=config.agent_token(args.token_file),
        timeout_seconds=args.timeout,
        on_retry=lambda error, seconds: screen.note(_retry_note(error, seconds)),
    ) as client:
        try:
            return int(args.run(args, client, screen))
        except ApiProblem as problem:
            problem.anonymous = not client.has_token
            raise


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="dispatcher-agent",
        description="Takes runs from the Workflow Dispatcher, keeps them alive and ends them.",
        epilog=EPILOG,
        parents=[_common_options()],
    )
    parser.add_argument("--version", action="version", version=f"dispatcher-agent {__version__}")
    parser.set_defaults(run=None, json=False, api=None, token_file=None, timeout=TIMEOUT_SECONDS)
    common = _common_options()  # again: set_defaults has changed those above
    group = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    def command(name: str, run: Callable[..., int], help_text: str, *aliases: str) -> argparse.ArgumentParser:
        sub = group.add_parser(name, aliases=aliases, help=help_text, description=help_text, parents=[common])
        sub.set_defaults(run=run)
        return sub

    _add_reading_commands(command)
    _add_lease_commands(command)
    _add_submit(command)
    _add_run(command)
    cancel = command("cancel", commands.cancel, "End a run by an operator's word, whoever holds it")
    cancel.add_argument("run_id", metavar="RUN-ID")
    cancel.add_argument("--reason", metavar="TEXT", help="why; the timeline keeps it")
    completion = command("completion", commands.completion, "Print the completions for a shell to source")
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(parser=parser)
    return parser


def _common_options() -> Parser:
    """Accepted before and after the command; suppressed, so that the one place doesn't undo the other."""
    common = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--api", metavar="URL", help="the server's address")
    common.add_argument("--token-file", metavar="FILE", help="holds the token, instead of the environment")
    common.add_argument("--timeout", metavar="SECONDS", type=_seconds, help="for each try of a call (10)")
    common.add_argument("--json", action="store_true", help="one JSON document on standard output, errors too")
    return common


Command = Callable[..., argparse.ArgumentParser]


def _add_reading_commands(command: Command) -> None:
    poll = command("poll", commands.poll, "List runs that wait for an agent")
    poll.add_argument("--limit", metavar="N", type=int, default=3, help="at most so many (3)")
    poll.add_argument("--agent", metavar="AGENT", help="only runs for this agent")
    show = command("show", commands.show, "Show a run with its input, output and timeline")
    show.add_argument("run_id", metavar="RUN-ID")
    command("stats", commands.stats, "Show the dispatcher's figures")


def _add_lease_commands(command: Command) -> None:
    claim = command("claim", commands.claim, "Take a run")
    claim.add_argument("run_id", metavar="RUN-ID")
    claim.add_argument("--session", metavar="S", help="who will work on it")
    claim.add_argument("--agent", metavar="AGENT", help="claim for this agent")
    _held(command("start", commands.start, "Say that work on a claimed run begins"))
    beat = _held(command("heartbeat", commands.heartbeat, "Keep a run, and say how far it is", "hb"))
    beat.add_argument("--percent", metavar="P", type=_number, help="how much is done")
    beat.add_argument("--message", metavar="TEXT", help="what is going on")
    done = _held(command("complete", commands.complete, "End a run well", "done"))
    done.add_argument("--output", metavar="JSON", help=OUTPUT_HELP)
    fail = _held(command("fail", commands.fail, "End a run badly"))
    fail.add_argument("--error", metavar="TEXT", required=True, help="what went wrong")
    fail.add_argument("--retryable", action="store_true", help="another attempt may succeed")
    fail.add_argument("--retry-after", metavar="SECONDS", type=int, help="not before then")
    give_back = _held(command("release", commands.release, "Give a run back; the attempt doesn't count"))
    give_back.add_argument("--reason", metavar="TEXT", help="why")


def _held(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
    sub.add_argument("run_id", metavar="RUN-ID")
    sub.add_argument("--session", metavar="S", help="the session that claimed the run")
    sub.add_argument("--lease-no", metavar="N", type=int, help="refuse unless this is still the lease")
    return sub


def _add_submit(command: Command) -> None:
    submit = command("submit", commands.submit, "Create a run")
    submit.add_argument("workflow_type", metavar="TYPE")
    submit.add_argument("--input", metavar="JSON", help="what to work on; - reads standard input, @FILE a file")
    submit.add_argument("--priority", metavar="N", type=int, help="higher goes first")
    submit.add_argument("--owner", metavar="AGENT", help="the agent that shall do it, whatever the rules say")
    submit.add_argument("--idempotency-key", metavar="KEY", help="the same key never creates a second run")
    submit.add_argument(
        "--wait",
        metavar="SECONDS",
        nargs="?",
        type=_wait_seconds,
        const=DEFAULT_WAIT_SECONDS,
        help="until it ended (an hour at most): exit 0 when it completed, 1 when it ended otherwise, 75 else",
    )


def _add_run(command: Command) -> None:
    run = command("run", commands.run, "Take runs and have a command do them")
    run.usage = "dispatcher-agent run [options] --types A,B -- CMD [ARG ...]"
    run.epilog = RUN_EPILOG
    run.add_argument("--types", metavar="A,B", required=True, help="the workflow types to take")
    run.add_argument("--session", metavar="S", help="one for each runner; default: a new one")
    run.add_argument("--agent", metavar="AGENT", help="claim for this agent")
    run.add_argument("--once", action="store_true", help="end after one run")
    run.add_argument("--drain", action="store_true", help="end when there is nothing to claim")
    run.add_argument("--output-file", metavar="FILE", help="where the command leaves its output")
    run.add_argument("--grace", metavar="SECONDS", type=_number, default=10, help="between SIGTERM and SIGKILL (10)")
    run.add_argument("command", metavar="CMD", nargs="*", help="the command and its arguments, behind --")


def _seconds(text: str) -> float:
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} isn't above 0")
    return value


def _wait_seconds(text: str) -> float:
    try:
        return _seconds(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; write the type first, or --wait=SECONDS") from None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if value - value != 0:  # infinite, or not a number
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(value) if value.is_integer() else value


def _explanation(error: ClientError) -> list[str]:
    """Plain lines below an error: how the run stands, what to do now."""
    if isinstance(error, ApiProblem):
        lines = present_state(error.run, columns=COLUMNS) if error.run else []
        if error.problem.get("directive") == "stop" and "stop working" not in error.detail.lower():
            lines.append("  Stop working on this run.")
        if error.status == 401 and error.anonymous:
            lines += wrap(f"No token was sent: set {config.TOKEN_VARIABLE}.", COLUMNS, first="  ", rest="  ")
        return lines
    advice = commands.advice(error)
    return wrap(advice, COLUMNS, first="  ", rest="  ") if advice else []


def _retry_note(error: TemporaryError, seconds: float) -> str:
    return f"{error.detail}. Trying again in {seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
