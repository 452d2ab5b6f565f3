// The rows: each is verified, then timed beside its probe.
#include <array>

#include "bench/runtime/harness.cuh"
#include "overlace/error.h"
#include "src/base/statistics.h"
#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/backend/cuda_peer/state.h"
#include "src/runtime/state.h"

namespace overlace::bench {
namespace {

namespace cp = runtime::cuda_peer;

constexpr uint64_t kRing = 256 * kMiB;
constexpr uint32_t kBounces = 500;

int next_of(const BenchRank& r) { return (r.rank + 1) % r.size; }
uint32_t previous_of(const BenchRank& r) { return static_cast<uint32_t>((r.rank + r.size - 1) % r.size); }
const uint32_t* my_inbox(const BenchRank& r) { return static_cast<const uint32_t*>(r.team.local_ptr(r.inbox)); }
void clear_inbox(BenchRank& r, uint64_t bytes) {
  r.shared.meeting.meet();  // nobody stores any more
  BENCH_CUDA(cudaMemsetAsync(r.team.local_ptr(r.inbox), 0, bytes, r.stream));
  BENCH_CUDA(cudaStreamSynchronize(r.stream));
  r.shared.meeting.meet();
}

/// Pushes the rank's own values into the inboxes.
void push(BenchRank& r, cp::Push what) {
  what.offset = r.inbox.offset;
  what.src = r.source;
  cp::launch_push(r.runtime.device(), StreamRef::cuda(r.stream), r.channel.pod(), what).or_throw();
}

void bench_ring_store(BenchRank& r, int ctas, double target) {
  Row row{"peer_store", base::format("{} CTAs, ring, 256 MiB", ctas), static_cast<double>(kRing), target};
  clear_inbox(r, kRing);
  const auto ours = [&] { push(r, {.ctas = ctas, .bytes = kRing}); };
  const auto plain = [&] { launch_plain_store(r.stream, ctas, 1, r.rank, r.size, r.shared.plain, 0, r.source, kRing); };
  if (!r.verify(row, ours, [&] { launch_check(r.stream, my_inbox(r), kRing / 4, 0, previous_of(r), r.wrong); })) return;
  r.measure(std::move(row), 1, ours, plain);
}

void bench_spray(BenchRank& r, double target) {
  const uint64_t each = 128 * kMiB;
  const int peers = r.size - 1;
  Row row{"sprayed_stores", base::format("132 CTAs, {} peers, 128 MiB each", peers), static_cast<double>(each) * peers,
          target};
  clear_inbox(r, each * static_cast<uint64_t>(r.size));
  const auto ours = [&] { push(r, {.ctas = 132, .peers = peers, .stride = each, .bytes = each}); };
  const auto plain = [&] {
    launch_plain_store(r.stream, 132, peers, r.rank, r.size, r.shared.plain, each, r.source, each);
  };
  const auto look = [&] {
    for (int from = 0; from < r.size; ++from)
      if (from != r.rank)
        launch_check(r.stream, my_inbox(r) + static_cast<uint64_t>(from) * each / 4, each / 4, 0,
                     static_cast<uint32_t>(from), r.wrong);
  };
  if (!r.verify(row, ours, look)) return;
  r.measure(std::move(row), 1, ours, plain);
}

void bench_bulk(BenchRank& r, bool add, int ctas, double target) {
  Row row{add ? "tma_add_bf16" : "tma_store", base::format("{} CTAs, ring, 256 MiB", ctas), static_cast<double>(kRing),
          target};
  clear_inbox(r, kRing);
  const auto by = add ? cp::Push::By::bulk_add : cp::Push::By::bulk;
  const auto ours = [&] { push(r, {.by = by, .ctas = ctas, .bytes = kRing}); };
  char* const theirs = r.shared.plain.base[next_of(r)];
  const auto plain = [&] { launch_plain_bulk(r.stream, add, ctas, r.rank, theirs, kRing); };
  // The second addition must double what the first one left.
  if (add) {
    ours();
    BENCH_CUDA(cudaStreamSynchronize(r.stream));
  }
  const auto look = [&] {
    const auto check = add ? launch_check_twice : launch_check;
    check(r.stream, my_inbox(r), kRing / 4, kBulkBytes / 4, previous_of(r), r.wrong);
  };
  if (!r.verify(row, ours, look)) return;
  clear_inbox(r, kRing);
  r.measure(std::move(row), 1, ours, plain);
}

void bench_stream_put(BenchRank& r, uint64_t mib, double target) {
  const uint64_t bytes = mib * kMiB;
  Row row{"stream_put", base::format("ring, {} MiB", mib), static_cast<double>(bytes), target};
  clear_inbox(r, bytes);
  void* const to = r.team.peer_ptr(r.inbox, next_of(r));
  const auto ours = [&] { cp::stream_put(to, r.source, bytes, r.stream).or_throw(); };
  char* const theirs = r.shared.plain.base[next_of(r)];
  const auto plain = [&] { BENCH_CUDA(cudaMemcpyAsync(theirs, r.source, bytes, cudaMemcpyDeviceToDevice, r.stream)); };
  if (!r.verify(row, ours, [&] { launch_check(r.stream, my_inbox(r), bytes / 4, 0, previous_of(r), r.wrong); })) return;
  r.measure(std::move(row), 1, ours, plain);
}

/// Pairs (0, 1), (2, 3): half a round trip. The probe's words start at 0 before each of its samples.
double bench_bounce(BenchRank& r, uint32_t bytes, double target) {
  Row row{bytes == 0 ? "flag" : "put_signal", bytes == 0 ? "one way" : base::format("one way, one CTA, {} B", bytes), 0,
          target};
  const SignalIds ids = r.channel.ids(1, Domain::device, "bench.bounce");
  const int peer = r.rank ^ 1;
  const auto ours = [&] {
    launch_bounce(r.stream, r.channel.pod(), ids.first, r.inbox.offset, r.source, bytes, kBounces, r.code);
  };
  char *const my_words = r.plain + kBuffer, *const their_words = r.shared.plain.base[peer] + kBuffer;
  const auto plain = [&] {
    launch_plain_bounce(r.stream, reinterpret_cast<uint64_t*>(my_words), reinterpret_cast<uint64_t*>(their_words),
                        r.shared.plain.base[peer], r.source, bytes, r.rank % 2 == 0, kBounces);
  };
  const auto reset = [&] {
    BENCH_CUDA(cudaMemsetAsync(my_words, 0, 64, r.stream));
    BENCH_CUDA(cudaStreamSynchronize(r.stream));
    r.shared.meeting.meet();
  };
  const auto look = [&] {
    if (bytes != 0) launch_check(r.stream, my_inbox(r), bytes / 4, 0, static_cast<uint32_t>(peer), r.wrong);
  };
  clear_inbox(r, 64 * 1024);
  if (!r.verify(row, ours, look)) return 0;
  if (r.options.verify_only) return r.keep(std::move(row)), 0;
  for (int i = -10; i < r.options.repetitions; ++i) {
    const double a = r.sample(ours);
    reset();
    const double b = r.sample(plain);
    if (i < 0) continue;
    row.ours_us.push_back(a / (2.0 * kBounces));
    row.plain_us.push_back(b / (2.0 * kBounces));
  }
  r.runtime.check();
  const double one_way = base::median(row.ours_us);
  if (bytes == 0) {
    const double cost = one_way / base::median(row.plain_us) - 1;
    row.note = base::format("deadline and abort checks cost {:.1f} % (wanted <= 2)", 100 * cost);
  }
  r.keep(std::move(row));
  return one_way;
}

void bench_barrier(BenchRank& r, double target) {
  Row row{"barrier", base::format("{} ranks, one warp", r.size), 0, target};
  const SignalIds ids = r.channel.ids(1, Domain::device, "bench.barrier");
  const auto ours = [&] { launch_barriers(r.stream, r.channel.pod(), ids.first, kBounces, r.code); };
  PlainPeers words{};
  for (int peer = 0; peer < r.size; ++peer) words.base[peer] = r.shared.plain.base[peer] + kBuffer + 4096;
  const auto plain = [&] { launch_plain_barriers(r.stream, words, r.rank, r.size, kBounces); };
  if (!r.verify(row, ours, [] {})) return;
  if (r.options.verify_only) return r.keep(std::move(row));
  for (int i = -10; i < r.options.repetitions; ++i) {
    const double a = r.sample(ours);
    BENCH_CUDA(cudaMemsetAsync(words.base[r.rank], 0, 8192, r.stream));
    BENCH_CUDA(cudaStreamSynchronize(r.stream));
    const double b = r.sample(plain);
    if (i < 0) continue;
    row.ours_us.push_back(a / kBounces);
    row.plain_us.push_back(b / kBounces);
  }
  r.runtime.check();
  r.keep(std::move(row));
}

/// How a copy is triggered by a kernel and its arrival is seen.
struct ReleaseCase {
  const char* name;
  bool by_write;  // the flag is written by the stream, else an 8-byte copy
  bool is_near;   // the flag lies on the sender, whose own kernel sees it; else the receiver answers by a signal
  bool is_alone;  // rank 0 only, else all even ranks at once
};

/// A kernel of an even rank releases a local counter; a stream waits for it, copies 4 KiB to the odd rank and then a
/// flag. Where a kernel of the odd rank answers, the answer's one-way time is taken off.
void bench_release(BenchRank& r, const ReleaseCase& one, double flag_us, double target) {
  constexpr uint32_t kRounds = 100;
  cp::CudaPeerState& state = cp::cuda_peer_state(*r.runtime.state().backend);
  Row row{"release_copy_flag", base::format("counter release, 4 KiB copy, flag {}", one.name), 0, target};
  if (!state.stream_caps().wait_value || (!one.by_write && !state.copy_then_flag())) {
    row.note = "the device or this machine does not offer it";
    return r.keep(std::move(row));
  }
  const SignalIds ids = r.channel.ids(2, Domain::device, "bench.release");
  const int peer = r.rank ^ 1;
  const bool is_active = !one.is_alone || r.rank < 2, is_sender = is_active && r.rank % 2 == 0;
  uint64_t *counter = nullptr, *cells = nullptr;
  BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&counter), 8));
  BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&cells), kRounds * 8));
  uint64_t total = 0;  // flags sent so far
  const uint32_t flag = ids.first, ack = ids.first + 1;
  uint64_t* const slot = cp::slot_address(r.channel.pod().team, one.is_near ? r.rank : peer, flag, r.rank);
  const auto prepare = [&] {
    std::array<uint64_t, kRounds> values{};
    for (uint32_t i = 0; i < kRounds; ++i) values[i] = total + i + 1;
    BENCH_CUDA(cudaMemcpyAsync(cells, values.data(), sizeof values, cudaMemcpyHostToDevice, r.stream));
    BENCH_CUDA(cudaMemsetAsync(counter, 0, 8, r.stream));
    BENCH_CUDA(cudaStreamSynchronize(r.stream));
    for (uint32_t i = 1; is_sender && i <= kRounds; ++i) {
      cp::stream_wait(counter, i, false, state.stream_caps(), r.copies).or_throw();
      cp::stream_put(r.team.peer_ptr(r.inbox, peer), r.source, 4096, r.copies).or_throw();
      if (one.by_write) {
        cp::stream_write(slot, total + i, state.stream_caps(), r.copies).or_throw();
      } else {
        cp::stream_post(slot, cells + i - 1, r.copies).or_throw();
      }
    }
    total += kRounds;
  };
  const auto ours = [&] {
    if (is_sender)
      launch_release(r.stream, r.channel.pod(), counter, one.is_near ? r.rank : peer, one.is_near ? flag : ack, kRounds,
                     r.code);
    if (is_active && !is_sender && !one.is_near)
      launch_answer(r.stream, r.channel.pod(), peer, flag, ack, kRounds, r.code);
  };
  const auto look = [&] {
    BENCH_CUDA(cudaStreamSynchronize(r.copies));
    r.shared.meeting.meet();
    if (is_active && !is_sender) launch_check(r.stream, my_inbox(r), 1024, 0, static_cast<uint32_t>(peer), r.wrong);
  };
  clear_inbox(r, 4096);
  prepare();
  if (r.verify(row, ours, look)) {
    const int repetitions = r.options.verify_only ? -10 : r.options.repetitions;
    for (int i = -10; i < repetitions; ++i) {
      prepare();
      const double us = r.sample(ours) / kRounds - (one.is_near ? 0 : flag_us);
      if (i >= 0) row.ours_us.push_back(us);
    }
    r.runtime.check();
    r.keep(std::move(row));
  }
  BENCH_CUDA(cudaStreamSynchronize(r.copies));
  (void)cudaFree(counter);
  (void)cudaFree(cells);
}

}  // namespace

void run_rows(BenchRank& r) {
  bench_ring_store(r, 8, 330);
  bench_ring_store(r, 132, 0);
  bench_bulk(r, false, 8, 322);
  bench_bulk(r, false, 132, 346);
  bench_bulk(r, true, 8, 280);
  bench_bulk(r, true, 132, 312);
  bench_spray(r, 341);
  bench_stream_put(r, 16, 333);
  bench_stream_put(r, 64, 369);
  bench_stream_put(r, 512, 383);
  if (r.size % 2 != 0) return;
  const double flag_us = bench_bounce(r, 0, 1.4);
  bench_bounce(r, 16, 2.2);
  bench_bounce(r, 4096, 2.2);
  bench_barrier(r, 1.7);
  // The first is what 7.5 us was asked of: the stream reaches each wait after its counter was released. In the others
  // the wait is armed before, and the stream's next look at it costs 7 us more.
  bench_release(r, {"by stream write, seen by the sender, one GPU", true, true, true}, flag_us, 7.5);
  bench_release(r, {"by stream write, seen by the sender", true, true, false}, flag_us, 0);
  bench_release(r, {"by stream write, answered by the receiver", true, false, false}, flag_us, 0);
  bench_release(r, {"by 8-byte copy, answered by the receiver", false, false, false}, flag_us, 0);
}

}  // namespace overlace::bench
