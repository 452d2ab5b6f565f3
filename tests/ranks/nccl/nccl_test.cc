// Ways out of engine nccl's failures, at each call of NCCL: what is played is in stand_ins.h.
#include "src/runtime/engine/nccl/library.h"
#include "tests/ranks/nccl/rank.h"

namespace overlace::test::nccl {
namespace {

using Kind = Fault::Kind;

TEST(NcclWaysOut, AWholeLifeLeavesNothing) {
  for (const int n : {1, 2, 4}) {
    run(n, [](Rank& rank) {
      rank.open().or_throw();
      EXPECT_EQ(rank.engine->version(), "2.28.9");
      call_all(rank, *rank.engine, rank.ref());
      call_all(rank, *rank.engine, StreamRef::cuda(nullptr));
      EXPECT_TRUE(rank.ends());
      EXPECT_EQ(rank.host.cause().code, Errc::ok) << rank.host.cause().message;
      rank.team.barrier();
      rank.close();
      if (rank.rank == 0) {
        EXPECT_EQ(library().counts().opened, 2 * rank.size);
        EXPECT_EQ(library().counts().aborted, 0);
      }
    });
  }
}

std::vector<std::string> settings_of_nccl() {
  std::vector<std::string> out;
  for (char** one = environ; *one != nullptr; ++one)
    if (std::string_view(*one).starts_with("NCCL_")) out.emplace_back(*one);
  return out;
}
const std::vector<std::string> kSettingsAtStart = settings_of_nccl();

/// Communicators of other libraries in the process read them too, such as PyTorch's.
TEST(NcclWaysOut, SettingsOfTheProcessStayAsTheyAre) {
  run(2, [](Rank& rank) {
    rank.open().or_throw();
    call_all(rank, *rank.engine, rank.ref());
    rank.close();
  });
  EXPECT_EQ(settings_of_nccl(), kSettingsAtStart);
}

struct At {
  const char* call;
  int nth;
};
void PrintTo(const At& at, std::ostream* out) { *out << at.call << at.nth; }
std::string name_of(const testing::TestParamInfo<At>& info) { return info.param.call + std::to_string(info.param.nth); }

class NcclOpenTest : public testing::TestWithParam<At> {};

/// Rank 1 says what failed; the others end soon, with its words.
void expect_failed_open(Rank& rank, const std::string& call, int code) {
  const int64_t begin = now_ns();
  const base::Status opened = rank.open();
  EXPECT_LT(now_ns() - begin, kSoonNs);
  ASSERT_FALSE(opened.ok());
  const std::string text = opened.message();
  if (rank.rank == 1) {
    EXPECT_EQ(errc_name(opened.code()), errc_name(Errc::engine));
    expect_text(text, {"nccl 2.28.9", call + " failed on rank 1 of 3", base::format("(code {})", code)});
  } else {
    EXPECT_EQ(errc_name(opened.code()), errc_name(Errc::aborted)) << text;
    expect_text(text, {"aborted by rank 1", call, base::format("(code {})", code)});
  }
}

TEST_P(NcclOpenTest, AFailedCallEndsTheOpenOfAllRanks) {
  const At at = GetParam();
  std::atomic<int> added = 0;
  run(3, [&](Rank& rank) {
    if (added++ == 0) library().add({at.call, 1, at.nth});
    rank.team.barrier();
    expect_failed_open(rank, at.call, ncclSystemError);
  });
}

INSTANTIATE_TEST_SUITE_P(Calls, NcclOpenTest,
                         testing::Values(At{"ncclCommInitRankConfig", 1}, At{"ncclCommGetAsyncError", 1},
                                         At{"ncclCommSplit", 1}, At{"ncclCommFinalize", 1}, At{"ncclAllReduce", 1},
                                         At{"ncclAllGather", 1}, At{"ncclReduceScatter", 1}, At{"ncclGroupStart", 1},
                                         At{"ncclSend", 1}, At{"ncclSend", 3}, At{"ncclRecv", 1}, At{"ncclRecv", 3},
                                         At{"ncclGroupEnd", 1}),
                         name_of);

/// Communicators that exist by then are not left behind.
TEST(NcclWaysOut, AnErrorBehindTheBeginOfAnOpenEndsIt) {
  constexpr std::pair<const char*, Kind> kCases[] = {{"ncclCommInitRankConfig", Kind::fails_late},
                                                     {"ncclCommSplit", Kind::fails_late},
                                                     {"ncclCommSplit", Kind::reports}};
  for (const auto& [call, kind] : kCases) {
    run(3, [&, call = call, kind = kind](Rank& rank) {
      if (rank.rank == 1) library().add({call, 1, 1, kind, ncclRemoteError});
      expect_failed_open(rank, call, ncclRemoteError);
    });
  }
}

TEST(NcclWaysOut, AFailedDestroyOfTheMeetingIsNoFailure) {
  Options options;
  options.leaked = 1;
  run(
      2,
      [](Rank& rank) {
        if (rank.rank == 1) library().add({"ncclCommDestroy", 1});
        rank.open().or_throw();
        call_all(rank, *rank.engine, rank.ref());
        EXPECT_TRUE(rank.ends());
      },
      options);
}

TEST(NcclWaysOut, ADeviceWithoutMemoryEndsTheOpen) {
  for (const char* call : {"cudaStreamCreate", "cudaMalloc", "cudaMemsetAsync"}) {
    run(2, [&](Rank& rank) {
      if (rank.rank == 0) cuda::fail(call);
      const base::Status opened = rank.open();
      ASSERT_FALSE(opened.ok());
      expect_text(opened.message(), {call});
      if (rank.rank == 1) expect_text(opened.message(), {"aborted by rank 0"});
    });
  }
}

TEST(NcclWaysOut, AnIdThatRankZeroCannotMakeIsSaidByAll) {
  for (const bool is_required : {true, false}) {
    Options options;
    options.is_required = is_required;
    run(
        3,
        [&](Rank& rank) {
          if (rank.rank == 0) library().add({"ncclGetUniqueId", 0});
          const base::Status opened = rank.open();
          EXPECT_EQ(opened.ok(), !is_required);
          if (opened.ok()) {
            EXPECT_EQ(rank.engine, nullptr);
          } else {
            expect_text(opened.message(), {"ncclGetUniqueId failed on rank 0 of 3", "(code 2)"});
          }
        },
        options);
  }
}

/// Peers that never come: no abort reaches the rank, only its deadline ends the wait.
TEST(NcclWaysOut, AMeetingIsGivenUpAtTheDeadline) {
  for (const char* call : {"ncclCommInitRankConfig", "ncclCommSplit", "ncclCommFinalize"}) {
    Options options;
    options.timeout_ms = 300;
    options.spreads = false;
    run(
        2,
        [&](Rank& rank) {
          if (rank.rank == 1) library().add({call, 1});
          const base::Status opened = rank.open();
          ASSERT_FALSE(opened.ok());
          if (rank.rank == 1) return;
          EXPECT_EQ(errc_name(opened.code()), errc_name(Errc::timeout));
          expect_text(opened.message(), {call, "rank 0 of 2 waited 300 ms"});
        },
        options);
  }
}

class NcclCallTest : public testing::TestWithParam<At> {};

TEST_P(NcclCallTest, AFailureNamesTheCallAndLeavesNothing) {
  const At at = GetParam();
  run(2, [&](Rank& rank) {
    rank.open().or_throw();
    rank.team.barrier();
    if (rank.rank == 1) {
      library().add({at.call, 1, at.nth, Kind::fails, ncclInternalError});
      const std::string text = thrown(Errc::engine, [&] { call_all(rank, *rank.engine, rank.ref()); });
      expect_text(text, {base::format("{} failed on rank 1 of 2", at.call), "(code 3)"});
      EXPECT_EQ(library().group_depth(), 0);
      rank.host.abort({Errc::engine, text});
    } else {
      try {  // the abort may come before its calls have ended
        call_all(rank, *rank.engine, rank.ref());
      } catch (const Error& error) {
        expect_text(error.what(), {"aborted by rank 1", at.call});
      }
    }
    EXPECT_TRUE(rank.ends());
    EXPECT_TRUE(rank.is_watched());
    (void)thrown(rank.rank == 1 ? Errc::engine : Errc::aborted, [&] { call_all(rank, *rank.engine, rank.ref()); });
  });
}

INSTANTIATE_TEST_SUITE_P(Calls, NcclCallTest,
                         testing::Values(At{"ncclAllGather", 1}, At{"ncclReduceScatter", 1}, At{"ncclAllReduce", 1},
                                         At{"ncclBroadcast", 1}, At{"ncclReduce", 1}, At{"ncclGroupStart", 1},
                                         At{"ncclGroupStart", 2}, At{"ncclGroupStart", 3}, At{"ncclSend", 1},
                                         At{"ncclSend", 2}, At{"ncclSend", 3}, At{"ncclRecv", 1}, At{"ncclRecv", 3},
                                         At{"ncclGroupEnd", 1}, At{"ncclGroupEnd", 2}, At{"ncclGroupEnd", 3}),
                         name_of);

/// A refusal of NCCL that leaves the communicator whole, on all ranks alike.
TEST(NcclWaysOut, AfterAFailureThatAllRanksSeeTheEngineGoesOn) {
  for (const char* call : {"ncclAllReduce", "ncclSend", "ncclRecv", "ncclGroupEnd"}) {
    run(2, [&](Rank& rank) {
      rank.open().or_throw();
      library().add({call, rank.rank, 1, Kind::fails, ncclInvalidArgument});
      (void)thrown(Errc::engine, [&] { call_all(rank, *rank.engine, rank.ref()); });
      EXPECT_EQ(library().group_depth(), 0);
      rank.team.barrier();
      call_all(rank, *rank.engine, rank.ref());
      EXPECT_TRUE(rank.ends()) << "work behind the failure waits for ever";
      EXPECT_EQ(rank.host.cause().code, Errc::ok) << rank.host.cause().message;
    });
  }
}

TEST(NcclWaysOut, AnErrorInsideAGroupEndsIt) {
  run(2, [](Rank& rank) {
    rank.open().or_throw();
    NetEngine& engine = *rank.engine;
    char data[8] = {};
    const auto in_group = [&](Errc code, const std::function<void()>& body) {
      engine.group_begin("test");
      engine.send(data, 4, 1 - rank.rank, rank.ref());
      (void)thrown(code, body);
      EXPECT_EQ(library().group_depth(), 0);
      expect_text(thrown(Errc::invalid_argument, [&] { engine.group_end(); }), {"no group is open"});
    };
    in_group(Errc::invalid_argument, [&] { engine.send(data, 4, 2, rank.ref()); });
    in_group(Errc::invalid_argument, [&] { engine.recv(data, 4, 0, StreamRef::cpu()); });
    in_group(Errc::not_supported, [&] { engine.all_reduce(data, data, 1, DType::e4m3, rank.ref()); });
    in_group(Errc::invalid_argument, [&] { engine.broadcast(data, 1, DType::u8, -1, rank.ref()); });
    (void)thrown(Errc::invalid_argument, [&] { engine.all_to_all(data, data, 1, DType::u8, StreamRef::cpu()); });
    (void)thrown(Errc::invalid_argument, [&] { engine.group_end(); });
    call_all(rank, engine, rank.ref());
    EXPECT_TRUE(rank.ends());
  });
}

/// The communicator stays until the thread has left its group, which NCCL would otherwise hold for ever, of freed
/// memory.
TEST(NcclWaysOut, AnAbortInsideAGroupWaitsForItsEnd) {
  for (const int way : {0, 1, 2}) {
    run(2, [&](Rank& rank) {
      rank.open().or_throw();
      NetEngine& engine = *rank.engine;
      char data[8] = {};
      engine.group_begin("outer");
      engine.group_begin("inner");
      engine.send(data, 4, 1 - rank.rank, rank.ref());
      rank.team.barrier();
      rank.host.abort({Errc::aborted, "as the test wants"});
      EXPECT_TRUE(rank.is_watched());
      if (way == 0) (void)thrown(Errc::aborted, [&] { engine.recv(data, 4, 1 - rank.rank, rank.ref()); });
      if (way == 1) (void)thrown(Errc::aborted, [&] { engine.group_end(); });
      if (way == 2) rank.close();
      EXPECT_EQ(library().group_depth(), 0);
      if (way != 2) (void)thrown(Errc::aborted, [&] { engine.group_end(); });
      rank.team.barrier();
      EXPECT_TRUE(holds_within(kSoonNs, [] { return library().counts().aborted == 2; }));
    });
  }
}

TEST(NcclWaysOut, AnEngineThatEndsInsideAGroupLeavesIt) {
  run(2, [](Rank& rank) {
    rank.open().or_throw();
    char data[8] = {};
    rank.engine->group_begin("test");
    rank.engine->send(data, 4, 1 - rank.rank, rank.ref());
    rank.close();
    EXPECT_EQ(library().group_depth(), 0);
  });
}

TEST(NcclWaysOut, AnErrorThatNcclReportsAbortsTheRank) {
  for (const bool is_of_the_question : {false, true}) {
    run(2, [&](Rank& rank) {
      rank.open().or_throw();
      rank.team.barrier();
      if (rank.rank == 0) {
        char data[8] = {};
        Fault fault{"ncclAllReduce", 0, 1, Kind::reports, ncclRemoteError};
        if (is_of_the_question) fault = {"ncclCommGetAsyncError", 0, 1, Kind::fails, ncclRemoteError};
        for (int i = 0; i < (is_of_the_question ? 600 : 1); ++i) library().add(fault);
        if (!is_of_the_question) rank.engine->all_reduce(data, data, 1, DType::fp32, rank.ref());
      }
      EXPECT_TRUE(holds_within(kSoonNs, [&] { return rank.host.cause().code != Errc::ok; }));
      const std::string text = rank.host.cause().message;
      expect_text(text, {"failed on rank 0 of 2", "(code 6)"});
      expect_text(text, {is_of_the_question ? "ncclCommGetAsyncError" : "work behind ncclAllReduce"});
      EXPECT_EQ(errc_name(rank.host.cause().code), errc_name(rank.rank == 0 ? Errc::engine : Errc::aborted));
      EXPECT_TRUE(rank.ends());
      rank.team.barrier();
      if (rank.rank == 0) library().reset_faults();
    });
  }
}

/// The first call is queued and waits on its stream for a peer that never joins; failed calls before it, and a stream
/// without a handle, hide nothing.
TEST(NcclWaysOut, AQueuedCollectiveHasADeadline) {
  for (const bool has_handle : {true, false}) {
    for (const bool fails_before : {false, true}) {
      Options options;
      options.timeout_ms = 300;
      run(
          2,
          [&](Rank& rank) {
            rank.open().or_throw();
            NetEngine& engine = *rank.engine;
            const StreamRef stream = has_handle ? rank.ref() : StreamRef::cuda(nullptr);
            char data[8] = {};
            if (fails_before) {
              library().add({"ncclAllReduce", rank.rank, 1, Kind::fails, ncclInvalidArgument});
              (void)thrown(Errc::engine, [&] { engine.all_reduce(data, data, 1, DType::fp32, stream); });
            }
            rank.team.barrier();
            if (rank.rank == 1) engine.all_gather(data, data, 1, DType::fp32, stream);
            EXPECT_TRUE(holds_within(kSoonNs, [&] { return rank.host.cause().code != Errc::ok; }));
            const AbortCause cause = rank.host.cause();
            EXPECT_EQ(errc_name(cause.code), errc_name(rank.rank == 1 ? Errc::timeout : Errc::aborted));
            expect_text(cause.message, {"rank 1 waited in ncclAllGather for rank 0"});
            EXPECT_TRUE(rank.ends());
          },
          options);
    }
  }
}

class NcclStuckTest : public testing::TestWithParam<At> {};

/// The deadline, or an abort from elsewhere, ends a call that NCCL does not return from.
TEST_P(NcclStuckTest, ACallIsEndedFromAnotherThread) {
  const At at = GetParam();
  for (const bool has_deadline : {true, false}) {
    Options options;
    if (has_deadline) options.timeout_ms = 400;
    run(
        2,
        [&](Rank& rank) {
          rank.open().or_throw();
          rank.team.barrier();
          const int64_t begin = now_ns();
          if (rank.rank == 1) {
            library().add({at.call, 1, at.nth, Kind::hangs, ncclInternalError});
            const std::string text =
                thrown(has_deadline ? Errc::timeout : Errc::aborted, [&] { call_all(rank, *rank.engine, rank.ref()); });
            expect_text(text, {at.call});
            if (has_deadline) expect_text(text, {"rank 1 waited in"});
            EXPECT_EQ(library().group_depth(), 0);
          } else if (!has_deadline) {
            EXPECT_TRUE(holds_within(kSoonNs, [] { return library().running() > 0; }));
            rank.host.abort({Errc::aborted, "rank 0 gives up"});
          }
          EXPECT_TRUE(holds_within(kSoonNs, [&] { return rank.host.cause().code != Errc::ok; }));
          EXPECT_LT(now_ns() - begin, kSoonNs);
          EXPECT_TRUE(rank.ends());
        },
        options);
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, NcclStuckTest,
                         testing::Values(At{"ncclAllGather", 1}, At{"ncclAllReduce", 1}, At{"ncclGroupEnd", 1}),
                         name_of);

TEST(NcclWaysOut, AFinalizePastItsDeadlineLeavesTheCommunicatorToTheProcess) {
  Options options;
  options.timeout_ms = 300;
  options.leaked = 2;  // the other rank waits for the one that hangs
  run(
      2,
      [](Rank& rank) {
        rank.open().or_throw();
        rank.team.barrier();
        if (rank.rank == 0) library().add({"ncclCommFinalize", 0, 1, Kind::hangs});
        const int64_t begin = now_ns();
        rank.close();
        EXPECT_LT(now_ns() - begin, kSoonNs);
        EXPECT_GE(now_ns() - begin, 3 * kSecondNs / 10);
      },
      options);
  // The library was released: what was left has ended since.
  EXPECT_TRUE(holds_within(kSoonNs, [] { return library().counts().destroyed == library().counts().opened; }));
}

TEST(NcclWaysOut, AFailedEndAborts) {
  Options options;
  options.timeout_ms = 300;
  options.leaked = 1;  // of the rank that waits for the one that failed
  run(
      2,
      [](Rank& rank) {
        rank.open().or_throw();
        rank.team.barrier();
        if (rank.rank == 0) library().add({"ncclCommFinalize", 0});
        rank.close();
        if (rank.rank == 0) {
          EXPECT_EQ(library().counts().aborted, 1);
        }
      },
      options);
}

/// NCCL_COMM_BLOCKING of the environment: the end of a communicator is not taken for one that hangs.
TEST(NcclWaysOut, CommunicatorsOfOneKindEndInTime) {
  for (const int blocking : {0, 1}) {
    run(2, [&](Rank& rank) {
      library().set_blocking(blocking);
      rank.team.barrier();
      rank.open().or_throw();
      call_all(rank, *rank.engine, rank.ref());
      EXPECT_TRUE(rank.ends());
      const int64_t begin = now_ns();
      rank.close();
      EXPECT_LT(now_ns() - begin, kSoonNs);
    });
  }
}

TEST(NcclWaysOut, AnAbortThatHangsStopsNobody) {
  Options options;
  options.timeout_ms = 300;
  options.leaked = 1;
  run(
      2,
      [](Rank& rank) {
        rank.open().or_throw();
        rank.team.barrier();
        if (rank.rank == 0) library().add({"ncclCommAbort", 0, 1, Kind::hangs});
        rank.team.barrier();
        rank.host.abort({Errc::aborted, "as the test wants"});
        EXPECT_TRUE(holds_within(kSoonNs, [] { return library().counts().aborted == 1; }));
        const int64_t begin = now_ns();
        EXPECT_TRUE(rank.is_watched()) << "the watcher hangs";
        rank.close();
        EXPECT_LT(now_ns() - begin, kSoonNs);
      },
      options);
}

TEST(NcclWaysOut, GraphsThatAreAliveKeepTheCommunicator) {
  run(2, [](Rank& rank) {
    rank.open().or_throw();
    NetEngine& engine = *rank.engine;
    char data[8] = {};
    const auto capture = [&](const std::function<void()>& body) {
      cuda::begin_capture(rank.stream);
      body();
      return cuda::end_capture(rank.stream);
    };
    for (const char* call : {"cudaUserObjectCreate", "cudaGraphRetainUserObject", "cudaStreamGetCaptureInfo"}) {
      const cudaGraph_t graph = capture([&] {
        engine.group_begin("test");
        engine.send(data, 4, 1 - rank.rank, rank.ref());
        cuda::fail(call);
        expect_text(thrown(call[4] == 'U' ? Errc::out_of_memory : Errc::cuda, [&] { engine.group_end(); }), {call});
        EXPECT_EQ(library().group_depth(), 0);
      });
      EXPECT_FALSE(engine.has_captures());
      cuda::destroy(graph);
    }
    const cudaGraph_t graph = capture([&] { call_all(rank, engine, rank.ref()); });
    EXPECT_TRUE(engine.has_captures());
    rank.team.barrier();
    rank.host.abort({Errc::aborted, "as the test wants"});
    const int64_t begin = now_ns();
    rank.close();
    EXPECT_LT(now_ns() - begin, kSoonNs);
    cuda::destroy(graph);
    rank.team.barrier();
    EXPECT_TRUE(holds_within(kSoonNs, [] { return library().counts().aborted == 2; }));
  });
}

TEST(NcclLibrary, AnOldOneIsRefused) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        library().set_version(21805);
        const auto opened = runtime::nccl::library();
        std::fprintf(stderr, "%s\n", opened.status().message().c_str());
        ::_exit(opened.ok() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "the library is 2.18.5, wanted 2.19.0 or later");
}

}  // namespace
}  // namespace overlace::test::nccl
