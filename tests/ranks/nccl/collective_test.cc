// All-reduces by an engine of NCCL on a stream of their own: order, failures, deadlines. No byte moves here.
#include "src/runtime/engine/nccl/collective.h"

#include "tests/ranks/nccl/rank.h"

namespace overlace::test::nccl {
namespace {

using Kind = Fault::Kind;

std::unique_ptr<AsyncCollective> collective_of(Rank& rank) {
  rank.open().or_throw();
  return runtime::nccl::make_collective({.net = rank.engine.get(),
                                         .rank = rank.rank,
                                         .size = rank.size,
                                         .cause =
                                             [&host = rank.host] {
                                               const AbortCause cause = host.cause();
                                               return base::Status(cause.code, cause.message);
                                             },
                                         .abort =
                                             [&host = rank.host](Errc code, std::string_view why) {
                                               host.abort({code, std::string(why)});
                                             },
                                         .owner = nullptr});
}

TEST(NcclCollective, IsBehindTheStreamAndTheStreamBehindIt) {
  for (const int n : {1, 2, 4}) {
    run(n, [](Rank& rank) {
      const auto outer = collective_of(rank);
      EXPECT_EQ(outer->name(), "nccl");
      EXPECT_EQ(outer->rank(), rank.rank);
      EXPECT_EQ(outer->size(), rank.size);
      EXPECT_TRUE(outer->caps().stream_ordered && outer->caps().progresses_alone && outer->caps().deterministic);
      EXPECT_FALSE(outer->caps().takes_residuals);
      std::atomic<bool> may_go = false, is_seen = false;
      cuda::enqueue(rank.stream, [&] { return may_go.load(); });
      std::vector<float> data(64);
      const Ticket first = outer->all_reduce({data.data(), 64, DType::fp32, "round 0, bucket 0"}, rank.ref());
      const Ticket empty = outer->all_reduce({data.data(), 0, DType::fp32, "round 0, bucket 1"}, rank.ref());
      outer->order_after(first, rank.ref());
      cuda::enqueue(rank.stream, [&] { return is_seen = true; });
      EXPECT_EQ(outer->poll(first), TicketState::pending);
      EXPECT_EQ(outer->poll(empty), TicketState::pending);
      EXPECT_FALSE(is_seen);
      may_go = true;
      EXPECT_TRUE(rank.ends());
      EXPECT_TRUE(is_seen);
      outer->wait(empty, 20000);
      EXPECT_EQ(outer->poll(first), TicketState::complete);
      outer->order_after(first, rank.ref());  // nothing to wait for any more
      EXPECT_GT(outer->times(first).complete_ns, 0);
      rank.team.barrier();
    });
  }
}

TEST(NcclCollective, ACallThatFailsIsAnErrorHereAndOnTheOthers) {
  run(2, [](Rank& rank) {
    const auto outer = collective_of(rank);
    rank.team.barrier();
    float value = 1;
    if (rank.rank == 0) library().add({.call = "ncclAllReduce", .rank = 1, .kind = Kind::fails});
    rank.team.barrier();
    if (rank.rank == 1) {
      expect_text(thrown(Errc::engine,
                         [&] {
                           (void)outer->all_reduce({&value, 1, DType::fp32, "a bucket"}, rank.ref());
                         }),
                  {"ncclAllReduce failed on rank 1 of 2"});
      outer->abort(Errc::engine, "the all-reduce of rank 1 failed");
      return;
    }
    EXPECT_TRUE(holds_within(kSoonNs, [&] { return rank.host.cause().code != Errc::ok; }));
    expect_text(thrown(Errc::aborted,
                       [&] {
                         (void)outer->all_reduce({&value, 1, DType::fp32, "a bucket"}, rank.ref());
                       }),
                {"all-reduce of a bucket", "the all-reduce of rank 1 failed"});
  });
}

TEST(NcclCollective, ARankThatDoesNotComeIsATimeoutOfTheWait) {
  run(2, [](Rank& rank) {
    const auto outer = collective_of(rank);
    rank.team.barrier();
    float value = 1;
    if (rank.rank == 1) {
      EXPECT_TRUE(holds_within(kSoonNs, [&] { return rank.host.cause().code != Errc::ok; }));
      return;
    }
    // What an all-reduce without its peer is: work that does not end until the communicator is aborted.
    std::atomic<bool> is_aborted = false;
    cuda::enqueue(rank.stream, [&] { return is_aborted || rank.host.cause().code != Errc::ok; });
    const Ticket ticket = outer->all_reduce({&value, 1, DType::fp32, "round 7, bucket 3"}, rank.ref());
    outer->order_after(ticket, rank.ref());
    expect_text(thrown(Errc::timeout, [&] { outer->wait(ticket, 200); }),
                {"round 7, bucket 3", "rank 0 of 2 waited 200 ms for 4 bytes"});
    EXPECT_EQ(outer->poll(ticket), TicketState::failed);
    EXPECT_TRUE(outer->caps().frees_on_failure);
    EXPECT_TRUE(rank.ends());
    (void)thrown(Errc::timeout, [&] { (void)outer->all_reduce({&value, 1, DType::fp32, "more"}, rank.ref()); });
  });
}

TEST(NcclCollective, OneThatIsDestroyedWithOpenTicketsTellsTheOthers) {
  run(2, [](Rank& rank) {
    auto outer = collective_of(rank);
    rank.team.barrier();
    float value = 1;
    if (rank.rank == 0) {
      cuda::enqueue(rank.stream, [&] { return rank.host.cause().code != Errc::ok; });
      (void)outer->all_reduce({&value, 1, DType::fp32, "a bucket"}, rank.ref());
      outer.reset();
      EXPECT_EQ(rank.host.cause().code, Errc::aborted);
      EXPECT_TRUE(rank.ends());
      return;
    }
    EXPECT_TRUE(holds_within(kSoonNs, [&] { return rank.host.cause().code != Errc::ok; }));
    expect_text(thrown(Errc::aborted,
                       [&] {
                         (void)outer->all_reduce({&value, 1, DType::fp32, "a bucket"}, rank.ref());
                       }),
                {"destroyed with open tickets"});
  });
}

TEST(NcclCollective, OneThatIsLeftByAnExceptionTellsTheOthers) {
  run(2, [](Rank& rank) {
    if (rank.rank == 0) {
      EXPECT_THROW(
          {
            const auto outer = collective_of(rank);
            rank.team.barrier();
            throw std::runtime_error("of the program");
          },
          std::runtime_error);
      expect_text(rank.host.cause().message, {"rank 0 left by an exception"});
      return;
    }
    const auto outer = collective_of(rank);
    rank.team.barrier();
    EXPECT_TRUE(holds_within(kSoonNs, [&] { return rank.host.cause().code != Errc::ok; }));
    float value = 1;
    expect_text(thrown(Errc::aborted,
                       [&] {
                         (void)outer->all_reduce({&value, 1, DType::fp32, "a bucket"}, rank.ref());
                       }),
                {"rank 0 left by an exception"});
  });
}

TEST(NcclCollective, RefusesWhatItCannotSum) {
  run(1, [](Rank& rank) {
    const auto outer = collective_of(rank);
    float value = 1, left = 0;
    expect_text(thrown(Errc::not_supported,
                       [&] {
                         (void)outer->all_reduce({&value, 1, DType::fp32, "a bucket"}, {});
                       }),
                {"stream of the CPU"});
    expect_text(thrown(Errc::not_supported,
                       [&] {
                         (void)outer->all_reduce({&value, 1, DType::fp32, "a bucket", &left}, rank.ref());
                       }),
                {"supported: host"});
  });
}

}  // namespace
}  // namespace overlace::test::nccl
