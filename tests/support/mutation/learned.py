"""Mistakes in what workers learn to import ahead, and pass on. One entry each: name, file, what stands there, what is put
in its place, the test that sees it.
"""

from __future__ import annotations

from support.mutation.mutant import Mutant

CORE = "operator/trainjob_operator/core/"
WARM = "worker-image/trainjob/agent/warm/"
FITNESS = "worker-image/trainjob/session/warm/fitness.py"
TEST = "tests/agent/test_learning.py::"
MISHAPS = "tests/agent/test_learning_mishaps.py::"
INSTRUCT = "tests/core/test_instruct.py::test_who_was_in_no_attempt_yet_is_told_what_the_members_have_learned"
UNFIT = "tests/session/test_warm.py::test_what_does_not_survive_a_fork_is_not_forked"

MUTANTS = (
    Mutant(
        "a spare is not told what was learned",
        CORE + "instruct.py",
        "        return _stand_by(status, members, agents), f",
        "        return _hold(status), f",
        INSTRUCT,
    ),
    Mutant(
        "who takes the place of a lost worker is not told",
        CORE + "instruct.py",
        "        return _hold(status) if slot in members else _stand_by(status, members, agents), why\n",
        "        return _hold(status), why\n",
        INSTRUCT,
    ),
    Mutant(
        "a worker that is no member tells what was learned",
        CORE + "instruct.py",
        "forks.passed_on(members, agents)",
        "forks.passed_on(reversed([*agents]), agents)",
        INSTRUCT,
    ),
    Mutant(
        "all of thousands are asked",
        CORE + "forks.py",
        "islice(members, ASKED)",
        "members",
        "tests/core/test_forks.py::test_what_the_first_member_tells_that_has_learned_is_passed_on",
    ),
    Mutant(
        "more names than there is room for",
        "operator/trainjob_api/module_names.py",
        "            room -= len(name) + len(_BETWEEN)\n",
        "            room -= len(name)\n",
        "tests/api/test_module_names.py::test_there_is_room_for_so_many",
    ),
    Mutant(
        "what is no name is imported",
        "operator/trainjob_api/module_names.py",
        '    return all(part.isidentifier() for part in name.split("."))\n',
        "    return bool(name)\n",
        "tests/api/test_module_names.py::test_nothing_else_is_a_name",
    ),
    Mutant(
        "a script that sets variables is given what others have learned",
        WARM + "learning.py",
        "        if not self._file or not self._may():\n            return NOTHING\n",
        "        if not self._file:\n            return NOTHING\n",
        TEST + "test_an_agent_that_is_started_anew_in_its_pod_has_what_the_one_before_it_had_learned",
    ),
    Mutant(
        "a parent that dies of what others have learned is the end of forks",
        WARM + "starter.py",
        "        if parent.learns and not parent.can_fork and parent.starved is None",
        "        if False and not parent.can_fork and parent.starved is None",
        TEST + "test_what_another_could_import_and_this_one_cannot_costs_no_fork",
    ),
    Mutant(
        "an agent that is started anew forgets what the one before it had learned",
        WARM + "learning.py",
        "            self._know(self._kept, module_names.listed(self._kept))\n",
        "",
        TEST + "test_an_agent_that_is_started_anew_in_its_pod_has_what_the_one_before_it_had_learned",
    ),
    Mutant(
        "what was learned is imported where memory is short",
        WARM + "learning.py",
        "        if why is None:\n            return self._file",
        "        if True:\n            return self._file",
        MISHAPS + "test_with_little_memory_nothing_of_it_is_imported",
    ),
    Mutant(
        "a parent that died before its turn takes it",
        WARM + "learning.py",
        "        if parent is None or parent.lives:\n            return parent\n",
        "        return parent\n",
        MISHAPS + "test_a_parent_that_dies_before_its_turn_leaves_the_one_before_it",
    ),
    Mutant(
        "a lock that all ranks share is imported ahead",
        FITNESS,
        "    if _shared_memory() - before.shared:\n",
        "    if False:\n",
        UNFIT,
    ),
    Mutant(
        "what moves the working folder is imported ahead",
        FITNESS,
        "    return None if os.getcwd() == before.folder else ",
        "    return None if True else ",
        UNFIT,
    ),
    Mutant(
        "a temporary folder that goes at exit is imported ahead",
        FITNESS,
        "    why = _takes(before.acts.taken_away())\n",
        "    why = None\n",
        UNFIT,
    ),
    Mutant(
        "a folder that goes with an object is imported ahead",
        FITNESS,
        "    return _takes(before.acts.taken_with(gc.get_objects()))\n",
        "    return None\n",
        UNFIT,
    ),
    Mutant(
        "forks draw the same numbers from a generator that a library has made",
        "worker-image/trainjob/session/warm/becoming.py",
        "    ahead.unseeded.renew()\n",
        "",
        "tests/session/test_warm.py::test_generators_that_a_library_makes_for_itself_are_each_ranks_own",
    ),
    Mutant(
        "a library in a fork does without what lies beside the script",
        "worker-image/trainjob/session/warm/becoming.py",
        "        if not files[name]:\n",
        "        if False:\n",
        "tests/session/test_warm.py::test_a_module_beside_the_script_that_a_library_does_without_elsewhere",
    ),
    Mutant(
        "what libraries change in the environment is as it was in forks",
        "worker-image/trainjob/session/warm/becoming.py",
        "    _change(ahead.environ)\n",
        "    os.environ.update({name: after for name, (before, after) in ahead.environ.items() if before is None and after})\n",
        "tests/session/test_warm.py::test_what_libraries_do_with_the_environment_is_done_in_each_rank",
    ),
    Mutant(
        "a fork that waits has what was imported before a package was installed anew",
        "worker-image/trainjob/session/warm/becoming.py",
        "    why = hidden or ahead.changed()\n",
        "    why = hidden or ahead.edited.changed()\n",
        "tests/session/test_warm.py::test_what_was_installed_anew_is_not_what_was_imported_ahead",
    ),
    Mutant(
        "a module outside site-packages stays as it was imported ahead",
        "worker-image/trainjob/session/warm/becoming.py",
        "        return self.installed.changed() or self.edited.changed()\n",
        "        return self.installed.changed()\n",
        "tests/session/test_warm.py::test_a_module_that_was_edited_is_imported_anew",
    ),
    Mutant(
        "what changes each time it is imported is imported ahead for ever",
        "worker-image/trainjob/agent/warm/parent.py",
        "word.again and self._has_forked, ",
        "word.again, ",
        "tests/session/test_warm.py::test_what_changes_each_time_it_is_imported_is_not_imported_ahead_for_ever",
    ),
    Mutant(
        "a library that seeds random numbers is imported ahead",
        FITNESS,
        "    if seeded is not None:\n",
        "    if False:\n",
        UNFIT,
    ),
    Mutant(
        "a parent is lost before it is known why",
        "worker-image/trainjob/agent/warm/starter.py",
        "if self._parent is not None and self._parent.is_lost:",
        "if self._parent is not None and not self._parent.lives:",
        "tests/session/test_warm.py::test_why_a_parent_is_gone_is_told_by_its_end_not_by_its_line",
    ),
)
