// All-reduces of device memory through the host: sums in stream order, ways out of failures.
#include "src/runtime/async_collective/cuda/staged.h"

#include <atomic>
#include <cmath>
#include <cstring>

#include "tests/ranks/nccl/device.h"

namespace overlace::test::nccl {
namespace {

float value_of(int rank, size_t bucket, size_t i) {
  return static_cast<float>((rank * 31 + static_cast<int>(bucket * 7 + i % 1000)) % 97 - 48);
}

TEST(StagedCollective, AStreamSeesSumsOfWhatWasQueuedBefore) {
  for (const int n : {1, 2, 3}) {
    run_on_devices(n, {}, [&](AsyncCollective& outer, cudaStream_t stream) {
      EXPECT_TRUE(outer.caps().stream_ordered);
      const StreamRef ref = StreamRef::cuda(stream);
      std::vector<std::vector<float>> buckets;
      std::vector<Ticket> tickets;
      for (const size_t count : {size_t{1}, size_t{0}, size_t{70001}, size_t{5}, size_t{4096}})
        buckets.emplace_back(count);
      for (size_t b = 0; b < buckets.size(); ++b) {
        cuda::enqueue(stream, [&bucket = buckets[b], b, rank = outer.rank()] {  // the stream writes what is sent
          for (size_t i = 0; i < bucket.size(); ++i) bucket[i] = value_of(rank, b, i);
          return true;
        });
        tickets.push_back(outer.all_reduce({buckets[b].data(), buckets[b].size(), DType::fp32, "a bucket"}, ref));
      }
      std::vector<double> header = {1.0, 0.5};
      const Ticket last = outer.all_reduce({header.data(), header.size(), DType::fp64, "a header"}, ref);
      size_t wrong = 0;
      for (size_t b = buckets.size(); b-- > 0;) {  // not the order of the launches
        outer.order_after(tickets[b], ref);
        cuda::enqueue(stream, [&, b] {
          for (size_t i = 0; i < buckets[b].size(); ++i) {
            float sum = 0;
            for (int r = 0; r < n; ++r) sum += value_of(r, b, i);
            wrong += buckets[b][i] == sum ? 0 : 1;
          }
          return true;
        });
      }
      EXPECT_TRUE(ends(stream));
      EXPECT_EQ(wrong, 0u);
      outer.wait(last, 20000);
      EXPECT_EQ(header[0], n);
      EXPECT_EQ(outer.poll(last), TicketState::complete);
      const TicketTimes times = outer.times(tickets[2]);
      EXPECT_LE(times.launched_ns, times.begun_ns);
      EXPECT_LE(times.begun_ns, times.met_ns);
      EXPECT_LE(times.met_ns, times.complete_ns);
    });
  }
}

/// The same bits as on the host, whatever pieces the bucket is cut into.
TEST(StagedCollective, ResidualsGoAndComeBack) {
  run_on_devices(2, {}, [&](AsyncCollective& outer, cudaStream_t stream) {
    std::vector<float> data(5000), residual(5000, 0.01f), whole(5000);
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = std::sin(static_cast<float>(i) + static_cast<float>(outer.rank()));
      whole[i] = std::sin(static_cast<float>(i)) + std::sin(static_cast<float>(i) + 1) + 0.02f;
    }
    const Ticket ticket =
        outer.all_reduce({data.data(), data.size(), DType::fp32, "int8", residual.data()}, StreamRef::cuda(stream));
    outer.wait(ticket, 20000);
    double largest = 0;
    for (size_t i = 0; i < data.size(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(data[i] - whole[i])));
    EXPECT_LT(largest, 0.05);
    EXPECT_GT(largest, 0);  // something was rounded
    EXPECT_NE(residual[17], 0.01f);
  });
}

TEST(StagedCollective, ARankThatDoesNotComeIsNamedAndNoStreamWaitsForEver) {
  std::mutex both;
  std::condition_variable changed;
  bool is_over = false;
  run_on_devices(2, {.timeout_ms = 1500, .leaves_errors = true}, [&](AsyncCollective& outer, cudaStream_t stream) {
    std::unique_lock lock(both);
    if (outer.rank() == 1) {  // alive, but late
      EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return is_over; }));
      return;
    }
    lock.unlock();
    float value = 3;
    const Ticket ticket = outer.all_reduce({&value, 1, DType::fp32, "round 7, bucket 3"}, StreamRef::cuda(stream));
    outer.order_after(ticket, StreamRef::cuda(stream));
    const int64_t begin = now_ns();
    EXPECT_TRUE(ends(stream));
    EXPECT_LT(now_ns() - begin, 10 * kSecondNs);
    const std::string text = thrown(Errc::timeout, [&] { outer.wait(ticket, 1); });
    expect_text(text, {"round 7, bucket 3", "rank 0 of 2 waited 1500 ms for 4 bytes", "not seen: rank 1"});
    EXPECT_EQ(outer.poll(ticket), TicketState::failed);
    EXPECT_TRUE(outer.caps().frees_on_failure);
    (void)thrown(Errc::timeout, [&] {
      (void)outer.all_reduce({&value, 1, DType::fp32, "more"}, StreamRef::cuda(stream));
    });
    lock.lock();
    is_over = true;
    changed.notify_all();
  });
}

TEST(StagedCollective, AnAbortEndsStreamsOfAllRanks) {
  run_on_devices(3, {.leaves_errors = true}, [&](AsyncCollective& outer, cudaStream_t stream) {
    float value = 3;
    if (outer.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      outer.abort(Errc::aborted, "the test's reason");
      return;
    }
    const Ticket ticket = outer.all_reduce({&value, 1, DType::fp32, "a bucket"}, StreamRef::cuda(stream));
    outer.order_after(ticket, StreamRef::cuda(stream));
    EXPECT_TRUE(ends(stream));
    expect_text(thrown(Errc::aborted, [&] { outer.wait(ticket, 20000); }), {"the test's reason"});
  });
}

TEST(StagedCollective, OneThatIsDestroyedWithOpenTicketsTellsTheOthers) {
  std::atomic<bool> is_over = false;
  float values[3] = {};  // which outlive the ranks
  run_on_devices(3, {.leaves_errors = true}, [&](AsyncCollective& outer, cudaStream_t stream) {
    float& value = values[outer.rank()];
    if (outer.rank() == 2) {  // alive, but late
      EXPECT_TRUE(holds_within(kSoonNs, [&] { return is_over.load(); }));
      return;
    }
    const Ticket ticket = outer.all_reduce({&value, 1, DType::fp32, "a bucket"}, StreamRef::cuda(stream));
    if (outer.rank() == 0) return;
    outer.order_after(ticket, StreamRef::cuda(stream));
    expect_text(thrown(Errc::aborted, [&] { outer.wait(ticket, 20000); }), {"destroyed with open tickets"});
    EXPECT_TRUE(ends(stream));
    is_over = true;
  });
}

TEST(StagedCollective, RanksThatComeForDifferentSumsAreToldBoth) {
  run_on_devices(2, {.leaves_errors = true}, [&](AsyncCollective& outer, cudaStream_t stream) {
    float values[2] = {3, 4};
    const size_t count = outer.rank() == 0 ? 1 : 2;
    const Ticket ticket = outer.all_reduce({values, count, DType::fp32, "round 7, bucket 3"}, StreamRef::cuda(stream));
    outer.order_after(ticket, StreamRef::cuda(stream));
    EXPECT_TRUE(ends(stream));
    std::string text;
    try {
      outer.wait(ticket, 20000);
    } catch (const Error& error) {
      text = error.what();
    }
    expect_text(text, {"1 x fp32", "2 x fp32", "wanted: the same on all ranks"});
  });
}

TEST(StagedCollective, ACopyThatFailsIsAnErrorOfItsTicket) {
  run_on_devices(1, {.leaves_errors = true}, [&](AsyncCollective& outer, cudaStream_t stream) {
    float value = 3;
    Ticket ticket;
    cuda::fail_anywhere("cudaMemcpyAsync");
    ticket = outer.all_reduce({&value, 1, DType::fp32, "a bucket"}, StreamRef::cuda(stream));
    expect_text(thrown(Errc::cuda,
                       [&] {
                         outer.order_after(ticket, StreamRef::cuda(stream));
                         outer.wait(ticket, 20000);
                       }),
                {"cudaMemcpyAsync"});
    EXPECT_TRUE(ends(stream));
  });
}

/// The mover asks CUDA whether the stream has come to the launch, and that call does not come back.
TEST(StagedCollective, ACallOfCudaThatHangsHoldsNeitherAnAbortNorTheDeadline) {
  for (const bool is_aborted : {true, false}) {
    run_on_devices(1, {.timeout_ms = 1500, .leaves_errors = true}, [&](AsyncCollective& outer, cudaStream_t stream) {
      float value = 3;
      std::atomic<bool> is_in = false, may_go = false;
      cuda::enqueue(stream, [&] {
        is_in = true;
        return holds_within(kSoonNs, [&] { return may_go.load(); });
      });
      const Ticket ticket = outer.all_reduce({&value, 1, DType::fp32, "a bucket"}, StreamRef::cuda(stream));
      EXPECT_TRUE(holds_within(kSoonNs, [&] { return is_in.load(); }));
      const int64_t begin_ns = now_ns();
      if (is_aborted) {
        outer.abort(Errc::aborted, "the test's reason");
        EXPECT_LT(now_ns() - begin_ns, kSecondNs);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(3000));
      }
      may_go = true;
      expect_text(
          thrown(is_aborted ? Errc::aborted : Errc::timeout, [&] { outer.wait(ticket, 20000); }),
          {is_aborted ? "the test's reason" : "a call of CUDA that copies buckets has not come back after 1500"});
    });
  }
}

TEST(StagedCollective, RefusesWhatIsNotOfAGpu) {
  run_on_devices(1, {}, [&](AsyncCollective& outer, cudaStream_t stream) {
    double value = 3;
    float left = 0;
    expect_text(thrown(Errc::not_supported,
                       [&] {
                         (void)outer.all_reduce({&value, 1, DType::fp64, "a bucket"}, {});
                       }),
                {"stream of the CPU"});
    expect_text(thrown(Errc::invalid_argument,
                       [&] {
                         (void)outer.all_reduce({&value, 1, DType::fp64, "a bucket", &left}, StreamRef::cuda(stream));
                       }),
                {"wanted: fp32"});
  });
}

}  // namespace
}  // namespace overlace::test::nccl
