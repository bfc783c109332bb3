"""Shell completion, generated from the parser: what that knows is complete, and nothing is asked at the prompt."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    names: tuple[str, ...]
    help: str
    takes_value: bool
    is_file: bool


@dataclass(frozen=True, slots=True)
class Command:
    names: tuple[str, ...]
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]  # what an argument can be
    runs_command: bool  # whose arguments are a command line, behind --


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """For `source <(dispatcher-agent completion bash)` and the like."""
    make = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return make(options_of(parser), commands_of(parser))


def options_of(parser: argparse.ArgumentParser) -> tuple[Option, ...]:
    actions = [action for action in parser._actions if action.option_strings]
    return tuple(
        Option(
            names=tuple(action.option_strings),
            help=action.help or "",
            takes_value=action.nargs is None,  # of --wait the value is optional
            is_file=action.metavar == "FILE",
        )
        for action in actions
    )


def commands_of(parser: argparse.ArgumentParser) -> tuple[Command, ...]:
    (group,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found: dict[int, list[str]] = {}
    for name, sub in group.choices.items():
        found.setdefault(id(sub), []).append(name)
    return tuple(_command(group.choices[names[0]], names) for names in found.values())


def _command(sub: argparse.ArgumentParser, names: list[str]) -> Command:
    arguments = [action for action in sub._actions if not action.option_strings]
    words: list[Any] = [word for action in arguments for word in action.choices or ()]
    return Command(
        names=tuple(names),
        help=sub.description or "",
        options=options_of(sub),
        words=tuple(words),
        runs_command=any(action.dest == "command" for action in arguments),
    )


def _bash(common: tuple[Option, ...], commands: tuple[Command, ...]) -> str:
    everything = [*common, *(option for command in commands for option in command.options)]
    with_value = sorted({name for option in everything if option.takes_value for name in option.names})
    with_file = sorted({name for option in everything if option.is_file for name in option.names})
    cases = "\n".join(
        f"        {'|'.join(command.names)}) words='{' '.join([*_names(command.options), *command.words])}' ;;"
        for command in commands
    )
    runs = "|".join(name for command in commands if command.runs_command for name in command.names)
    top = " ".join([*(name for command in commands for name in command.names), *_names(common)])
    return f"""\
# bash completion of dispatcher-agent; made by `dispatcher-agent completion bash`
_dispatcher_agent() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command='' words='' i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
        --) case $command in {runs}) COMPREPLY=($(compgen -c -f -- "$current")) ;; esac; return ;;
        {"|".join(with_value)}) ((i++)) ;;
        -*) ;;
        *) [[ $command ]] || command=${{COMP_WORDS[i]}} ;;
        esac
    done
    case $before in
        {"|".join(with_file)}) COMPREPLY=($(compgen -f -- "$current")); return ;;
        {"|".join(with_value)}) return ;;
    esac
    case $command in
        '') words='{top}' ;;
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -F _dispatcher_agent dispatcher-agent
"""


def _zsh(common: tuple[Option, ...], commands: tuple[Command, ...]) -> str:
    listed = "\n".join(
        f"        {_quoted(f'{name}:{_plain(command.help)}')}" for command in commands for name in command.names
    )
    cases = "\n".join(_zsh_case(command) for command in commands)
    return f"""\
#compdef dispatcher-agent
# zsh completion of dispatcher-agent; made by `dispatcher-agent completion zsh`
_dispatcher_agent() {{
    local context state state_descr line
    typeset -A opt_args
    local -a commands
    commands=(
{listed}
    )
    _arguments -C \\
{_zsh_options(common, 8)}
        '1: :->command' '*:: :->arguments'
    case $state in
    command) _describe command commands ;;
    arguments)
        case $line[1] in
{cases}
        esac ;;
    esac
}}
if [[ $funcstack[1] = _dispatcher_agent ]]; then
    _dispatcher_agent "$@"
else
    compdef _dispatcher_agent dispatcher-agent
fi
"""


def _zsh_case(command: Command) -> str:
    rest = "'*: :{ _command_names -e; _files }'" if command.runs_command else f"'*: :({' '.join(command.words)})'"
    return (
        f"        {'|'.join(command.names)}) _arguments \\\n{_zsh_options(command.options, 12)}\n            {rest} ;;"
    )


def _zsh_options(options: tuple[Option, ...], indent: int) -> str:
    lines = []
    for option in options:
        value = ":file:_files" if option.is_file else ":value: " if option.takes_value else ""
        lines += [f"{' ' * indent}{_quoted(f'{name}[{_plain(option.help)}]{value}')} \\" for name in option.names]
    return "\n".join(lines)


def _fish(common: tuple[Option, ...], commands: tuple[Command, ...]) -> str:
    start = "complete -c dispatcher-agent"
    every = " ".join(name for command in commands for name in command.names)
    lines = ["# fish completion of dispatcher-agent; made by `dispatcher-agent completion fish`", f"{start} -f"]
    lines += [
        f"{start} -n 'not __fish_seen_subcommand_from {every}' -a {name} -d {_quoted(command.help)}"
        for command in commands
        for name in command.names
    ]
    lines += [f"{start} -n 'not __fish_seen_subcommand_from {every}' {_fish_option(option)}" for option in common]
    for command in commands:
        seen = f"-n '__fish_seen_subcommand_from {' '.join(command.names)}'"
        lines += [f"{start} {seen} {_fish_option(option)}" for option in command.options]
        lines += [f"{start} {seen} -a {_quoted(' '.join(command.words))}"] if command.words else []
        lines += [f"{start} {seen} -F -a '(complete -C (commandline -ct))'"] if command.runs_command else []
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    value = " -r -F" if option.is_file else " -x" if option.takes_value else ""
    return f"{names}{value} -d {_quoted(option.help)}"


def _names(options: tuple[Option, ...]) -> list[str]:
    return [name for option in options for name in option.names]


def _plain(text: str) -> str:
    """Without what zsh's specifications are made of."""
    return "".join(" " if ch in "[]:\\" else ch for ch in text)


def _quoted(text: str) -> str:
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"
