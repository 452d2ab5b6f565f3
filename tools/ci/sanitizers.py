"""What runs under sanitizers at each commit, and what weekly."""

from __future__ import annotations

from runner import ROOT

SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "LSAN_OPTIONS": f"suppressions={ROOT / 'tools/ci/leaks_of_others.txt'}:print_suppressions=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1",
}


# What takes long under a sanitizer and shows it little that other cases do not: long sweeps, large teams, launchers,
# programs that lose processes or break schedules. Jobs test and long have them; under sanitizers asan-gcc and tsan-all,
# weekly.
SWEEPS = (
    *("Expand.EveryFamilyResolvesOnEveryRank", "Rounds.EveryFamilyEndsEvenIfAllStreamsOfARankAreOne"),
    *("WorkOrder.AnyResidentWorkersComeToTheEnd", "WorkOrder.EachProductSumAndCopyIsDoneOnce"),
    *("Check.AllFamiliesPassForAllTeamSizes", "Check.HierarchicalPassesForHostsOfEqualSize", "Exchange.*PassTheChecks"),
    "Operators/Folding.GivesTheTimesOfAllRanks/*",
    *("Simulate.IsTheSameEveryTime", "SimCheck.EveryPropertyHoldsOnEveryShippedMachine", "SimCheck.ExitCodeAndData"),
    *("SimCommand.CompareRanksNothingThatCannotRun", "Transformer.ThousandGpusOnBothNetworks", "Moe.ThousandGpus"),
    *("Validate.SameBitsEveryTime", "Validate.BeatsTheModelThatDoesNothing", "Validate.EveryRowThatMustPassPasses"),
    *("T3Summary.SensitivityCoversTheGridAndCostsNeverHelp", "Co2Stability.TheInequalityOnAGrid*"),
    *("Choose.IsPureAndItsSchedulesAreValid", "Generate.DcsbmHasTheSkewAndHomophilyThatWereMeasured"),
    *("SkewedDisk.SearchIsWithinTwoPercentOfTryingAll", "SkewedDisk.MinHashReadsFewerBytes"),
    *("Calibrate.AFitThatIsWorseThanAskedForLeavesNoFile", "Calibrate.WritesAMachineThatCanBePlannedFor"),
    *("Traffic.ShapesOfTheLibraryTakeNoMemoryEither", "ExecMemoryOfPrograms.TheOldestGoesUnlessAGraphHoldsIt"),
)
LARGE_TEAMS = (
    *(f"*/*{kind}_{ranks}" for kind in ("threads", "processes", "adversary") for ranks in (7, 8, 9)),
    "*_5_ranks_fp32_26_tokens_*",
)
NOT_SANITIZED = (
    *("ranks_fault", "ranks_fault_launch", "ranks_fault_open", "ranks_fault_operator", "ranks_mutation"),
    *("cli_end", "cli_mpirun"),
)
COMMIT_SANITIZER_ENV = {**SANITIZER_ENV, "GTEST_FILTER": "-" + ":".join((*SWEEPS, *LARGE_TEAMS))}

# The unit tests that start threads; in the others the thread sanitizer has nothing to see. unit_gnn takes four minutes
# under it.
C_TESTS = ("c_bad_input", "c_given", "c_ranks", "c_schedule")
THREADED_UNITS = (
    *C_TESTS,
    *("unit_base", "unit_exec", "unit_gnn", "unit_io", "unit_model", "unit_offload", "unit_plan", "unit_runtime"),
    "unit_train",
)

# What job tsan compiles and runs at each commit: each kind of signal and memory, whatever several threads of a rank
# touch, and an operator of each kind of exchange. Other operators go through the same code: tsan-all, weekly.
UNDER_TSAN = (
    *("unit_base", "unit_exec", "unit_offload", "unit_runtime", "toy_operator"),
    *("ranks_barrier", "ranks_counters", "ranks_inbox", "ranks_litmus", "ranks_put", "ranks_signal", "ranks_stripe"),
    *("ranks_abort", "ranks_adopt", "ranks_context", "ranks_end_of_wait", "ranks_meeting", "ranks_team"),
    *("ranks_async_collective", "ranks_collective", "ranks_exec", "ranks_exec_memory", "ranks_plans", "ranks_traffic"),
    *("ranks_known_problems", "ranks_striped", "ranks_unlike_calls", "ranks_warm_call"),
    *("ranks_ag_gemm", "ranks_embedding_a2a", "ranks_gemm_ar", "ranks_moe"),
)
