"""`tj completion bash|zsh|fish`: a script for the shell, made from the parser.

Commands and options stand in the script; names of this machine's jobs are asked for when they are needed (`tj list -o
name`). zsh reads the same script as bash does, by its own bashcompinit.
"""

from __future__ import annotations

import argparse

from trainjob.cli import parser as grammar
from trainjob_api.contract import CLI_OK

SHELLS = ("bash", "zsh", "fish")

BASH = """# tj completion: put `source <(tj completion {shell})` into ~/.{shell}rc
{before}_tj() {{
    [[ -n ${{ZSH_VERSION-}} ]] && emulate -L sh
    local current=${{COMP_WORDS[COMP_CWORD]}} command= word
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}"; do
        [[ $word == -- ]] && {{ COMPREPLY=($(compgen -f -- "$current")); return; }}
        [[ $word == -* ]] && continue
        case "${{command:+$command }}$word" in
{known}
        esac
    done
    local words= names=
    case "$command" in
{cases}
    esac
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    else
        [[ -n $names ]] && words="$words $(tj list -o name 2>/dev/null)"
        COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current"))
    fi
}}
complete -o filenames -F _tj tj
"""

FISH = """# tj completion: tj completion fish > ~/.config/fish/completions/tj.fish
function __tj_at
    set -l words (commandline -opc)[2..-1]
    set -l given
    for word in $words
        string match -q -- '-*' $word; or set -a given $word
    end
    set -l wanted (string split -n ' ' -- "$argv[1]")
    set -l many (count $wanted)
    if test $many -eq 0
        test (count $given) -eq 0
        return
    end
    test (count $given) -ge $many; and test "$given[1..$many]" = "$argv[1]"
end
{lines}
"""


def completion(args: argparse.Namespace) -> int:
    """Print the script of that shell."""
    print(script(args.shell), end="")
    return CLI_OK


def script(shell: str) -> str:
    """The completion script; `shell` is one of SHELLS."""
    found = commands(grammar.build())
    if shell == "fish":
        return FISH.format(lines="\n".join(_fish(found)))
    known = "|".join(f'"{name}"' for name in found if name)
    cases = "\n".join(
        f"        {_quoted(name)}) words={_quoted(' '.join(each.words))}{' names=1' if each.takes_job else ''} ;;"
        for name, each in found.items()
    )
    before = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    step = f'            {known}) command="${{command:+$command }}$word" ;;'
    return BASH.format(shell=shell, before=before, known=step, cases=cases)


class Known:
    """A command: what may follow it, and whether it is about a job by its name."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.options: dict[str, str] = {}
        """Long option -> its help."""
        self.below: dict[str, str] = {}
        """Command below it -> its help."""
        self.takes_job = False
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                self.below |= {choice.dest: choice.help or "" for choice in action._choices_actions}
            elif action.option_strings:
                self.options |= {word: action.help or "" for word in action.option_strings if word.startswith("--")}
            elif action.metavar in ("NAME", "JOB"):
                self.takes_job = True

    @property
    def words(self) -> list[str]:
        """All that may follow."""
        return [*self.below, *self.options]


def commands(parser: argparse.ArgumentParser, above: str = "") -> dict[str, Known]:
    """Every command by its words, `""` for `tj` itself: `checkpoints`, `checkpoints list`."""
    found = {above: Known(parser)}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                found |= commands(below, f"{above} {name}".strip())
    return found


def _fish(found: dict[str, Known]) -> list[str]:
    lines = []
    for name, each in found.items():
        at = f"-n \"__tj_at '{name}'\""
        lines += [f"complete -c tj {at} -a {word} -d {_quoted(_short(text))}" for word, text in each.below.items()]
        lines += [
            f"complete -c tj {at} -l {word[2:]} -d {_quoted(_short(text))}" for word, text in each.options.items()
        ]
        if each.takes_job:
            lines.append(f"complete -c tj {at} -a '(tj list -o name 2>/dev/null)'")
    return lines


def _short(text: str) -> str:
    return " ".join(text.replace("%%", "%").split())[:60]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
