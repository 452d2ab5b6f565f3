#include "src/runtime/backend/cuda_peer/self_test.h"

#include <algorithm>

#include "src/base/log.h"
#include "src/runtime/backend/cuda_peer/host_block.h"

namespace overlace::runtime::cuda_peer {
namespace {

constexpr uint64_t kMaxBlock = 1 << 20;
constexpr uint32_t kStoreSeed = 1, kOrderSeed = 100, kBurstSeed = 200;
constexpr uint64_t kRounds = 4;
constexpr uint64_t kMaxPieces = 1000;  // two copies each to each peer: some 50 ms of eight ranks
constexpr uint64_t kOrderTimeoutNs = 2'000'000'000;

class Session {
 public:
  explicit Session(const SelfTest& test)
      : test_(test),
        size_(test.local.size()),
        me_(static_cast<size_t>(std::lower_bound(test.local.begin(), test.local.end(), test.control.rank()) -
                                test.local.begin())),
        block_(std::min(kMaxBlock, test.user_bytes / size_) / 256 * 256) {}

  base::Status prepare() {
    if (block_ < TestBlock::kData + TestBlock::kStoreBytes)
      return base::invalid_argument("heap of {} user bytes: the self-test of {} ranks wants at least {}",
                                    test_.user_bytes, size_, size_ * (TestBlock::kData + TestBlock::kStoreBytes));
    base::Result<Pinned<uint32_t>> verdicts = allocate_pinned<uint32_t>(size_);
    if (!verdicts.ok()) return verdicts.status();
    verdicts_ = std::move(*verdicts);
    base::Result<Pinned<uint64_t>> numbers = allocate_pinned<uint64_t>(pieces());
    if (!numbers.ok()) return numbers.status();
    numbers_ = std::move(*numbers);
    for (uint32_t i = 0; i < pieces(); ++i) numbers_[i] = i + 1;
    base::Result<Pinned<HostBlock>> scratch = allocate_pinned<HostBlock>(1);
    if (!scratch.ok()) return scratch.status();
    scratch_ = std::move(*scratch);
    return {};
  }

  /// Everybody stores to everybody.
  base::Status send() {
    for (size_t step = 0; step < size_; ++step) {
      const size_t to = (me_ + step) % size_;
      uint64_t* sum = test_.test_atomics ? word(to, 0, TestBlock::kSum) : nullptr;
      OVERLACE_TRY(launch_test_send(test_.stream, data(to, me_), TestBlock::kStoreBytes, id(me_), kStoreSeed,
                                    word(to, me_, TestBlock::kSignal), sum));
    }
    return cuda_status(cudaStreamSynchronize(test_.stream), "self-test, stores");
  }

  base::Status check() {
    for (size_t from = 0; from < size_; ++from) {
      const uint64_t* sum = test_.test_atomics ? word(me_, 0, TestBlock::kSum) : nullptr;
      OVERLACE_TRY(launch_test_check(test_.stream, data(me_, from), TestBlock::kStoreBytes, id(from), kStoreSeed,
                                     word(me_, from, TestBlock::kSignal), sum, 32 * size_, &verdicts_[from]));
    }
    OVERLACE_TRY(cuda_status(cudaStreamSynchronize(test_.stream), "self-test, check"));
    for (size_t from = 0; from < size_; ++from) {
      const uint32_t bits = verdicts_[from];
      if (bits == 0) continue;
      return base::error(Errc::cuda,
                         "self-test: from rank {} to rank {}: {}{}{}arrived wrong; the peer access of this "
                         "machine cannot be used",
                         test_.local[from], test_.local[me_], (bits & kBadData) != 0 ? "stores " : "",
                         (bits & kBadSignal) != 0 ? "signal " : "",
                         (bits & kBadSum) != 0 ? "additions of all ranks " : "");
    }
    return {};
  }

  /// One waiting kernel per sender, all on one stream: a later sender's flag simply waits.
  base::Status await_copies(uint64_t round) {
    const TeamPod team = scratch_team();
    for (size_t from = 0; from < size_; ++from) {
      if (from == me_) continue;
      OVERLACE_TRY(launch_test_order(test_.stream, team, data(me_, from), payload(), id(from), seed(round),
                                     word(me_, from, TestBlock::kFlag), round, &verdicts_[from]));
    }
    return {};
  }

  /// My own block is the source: its pattern, then for each peer a copy and the flag.
  base::Status copy(uint64_t round) {
    OVERLACE_TRY(launch_test_send(test_.second, data(me_, me_), payload(), id(me_), seed(round),
                                  word(me_, me_, TestBlock::kFlag), nullptr));
    for (size_t step = 1; step < size_; ++step) {
      const size_t to = (me_ + step) % size_;
      OVERLACE_TRY(
          cuda_status(cudaMemcpyAsync(data(to, me_), data(me_, me_), payload(), cudaMemcpyDeviceToDevice, test_.second),
                      "self-test, copy"));
      OVERLACE_TRY(cuda_status(cudaMemcpyAsync(word(to, me_, TestBlock::kFlag), word(me_, me_, TestBlock::kFlag), 8,
                                               cudaMemcpyDeviceToDevice, test_.second),
                               "self-test, flag"));
    }
    OVERLACE_TRY(cuda_status(cudaStreamSynchronize(test_.second), "self-test, copies"));
    return cuda_status(cudaStreamSynchronize(test_.stream), "self-test, order");
  }

  base::Status await_burst() {
    return launch_test_burst(
        test_.stream, scratch_team(),
        {block(me_, 0), block_, static_cast<uint32_t>(size_), static_cast<uint32_t>(me_), pieces(), kBurstSeed},
        &verdicts_[0]);
  }

  /// Small copies to all peers in turn, each with its flag behind it, while all of them do the same.
  base::Status burst() {
    constexpr uint64_t kPiece = TestBlock::kPieceBytes;
    char* const source = data(me_, me_);
    auto* const numbers = reinterpret_cast<uint64_t*>(source + pieces() * kPiece);
    OVERLACE_TRY(launch_test_send(test_.second, source, pieces() * TestBlock::kPieceBytes, static_cast<uint32_t>(me_),
                                  kBurstSeed, word(me_, me_, TestBlock::kSignal), nullptr));
    OVERLACE_TRY(cuda_status(
        cudaMemcpyAsync(numbers, &numbers_[0], pieces() * sizeof(uint64_t), cudaMemcpyHostToDevice, test_.second),
        "self-test, numbers"));
    for (uint32_t i = 0; i < pieces(); ++i) {
      for (size_t step = 1; step < size_; ++step) {
        const size_t to = (me_ + step) % size_;
        OVERLACE_TRY(cuda_status(cudaMemcpyAsync(data(to, me_) + i * kPiece, source + i * kPiece, kPiece,
                                                 cudaMemcpyDeviceToDevice, test_.second),
                                 "self-test, small copy"));
        OVERLACE_TRY(cuda_status(cudaMemcpyAsync(word(to, me_, TestBlock::kBurstFlag), numbers + i, sizeof(uint64_t),
                                                 cudaMemcpyDeviceToDevice, test_.second),
                                 "self-test, small flag"));
      }
    }
    OVERLACE_TRY(cuda_status(cudaStreamSynchronize(test_.second), "self-test, small copies"));
    return cuda_status(cudaStreamSynchronize(test_.stream), "self-test, burst");
  }

  /// First sender whose flag overtook its data, -1 if none.
  int misordered() const {
    for (size_t from = 0; from < size_; ++from)
      if ((verdicts_[from] & kBadOrder) != 0) return test_.local[from];
    return -1;
  }

  base::Status clear() {
    OVERLACE_TRY(cuda_status(
        cudaMemsetAsync(test_.heap.base(test_.control.rank()) + test_.user_offset, 0, block_ * size_, test_.stream),
        "self-test, clear"));
    return cuda_status(cudaStreamSynchronize(test_.stream), "self-test, clear");
  }

 private:
  static constexpr uint64_t kClaim = 64;  // in the first block

  /// Who waits in the test, with a deadline of its own.
  TeamPod scratch_team() const {
    TeamPod team{};
    team.rank = static_cast<int32_t>(me_);
    team.size = static_cast<int32_t>(size_);
    team.abort_word = &scratch_[0].abort_word;
    team.record = &scratch_[0].record;
    team.claim = reinterpret_cast<uint32_t*>(test_.heap.base(test_.control.rank()) + test_.user_offset + kClaim);
    team.timeout_ns = kOrderTimeoutNs;
    return team;
  }
  uint32_t pieces() const {
    return static_cast<uint32_t>(
        std::min<uint64_t>(kMaxPieces, payload() / (TestBlock::kPieceBytes + sizeof(uint64_t))));
  }
  uint32_t id(size_t index) const { return static_cast<uint32_t>(test_.local[index]); }
  static uint32_t seed(uint64_t round) { return kOrderSeed + static_cast<uint32_t>(round); }
  uint32_t payload() const { return static_cast<uint32_t>(block_ - TestBlock::kData); }
  char* block(size_t at, size_t sender) const {
    return test_.heap.base(test_.local[at]) + test_.user_offset + sender * block_;
  }
  char* data(size_t at, size_t sender) const { return block(at, sender) + TestBlock::kData; }
  uint64_t* word(size_t at, size_t sender, uint64_t place) const {
    return reinterpret_cast<uint64_t*>(block(at, sender) + place);
  }

  const SelfTest& test_;
  size_t size_, me_;
  uint64_t block_;
  Pinned<uint32_t> verdicts_;
  Pinned<uint64_t> numbers_;  // 1, 2, ...: flags of a burst
  Pinned<HostBlock> scratch_;
};

}  // namespace

base::Result<SelfTestResult> run_self_test(const SelfTest& test) {
  // Every agreement is a barrier too: all ranks make the same ones, whatever they found.
  const auto agree = [&](const base::Status& mine) {
    return agree_on_status(test.control, mine, test.timeout_ms, "open, self-test");
  };
  Session session(test);
  OVERLACE_TRY(agree(session.prepare()));
  OVERLACE_TRY(agree(session.send()));
  OVERLACE_TRY(agree(session.check()));
  for (uint64_t round = 1; test.test_order && round <= kRounds; ++round) {
    OVERLACE_TRY(agree(session.await_copies(round)));
    OVERLACE_TRY(agree(session.copy(round)));
  }
  if (test.test_order) {
    OVERLACE_TRY(agree(session.await_burst()));
    OVERLACE_TRY(agree(session.burst()));
  }
  const int bad = session.misordered();
  if (bad >= 0)
    base::log(base::LogLevel::warn, "runtime",
              "an 8-byte copy from rank {} overtook the copy before it; streams signal by kernels instead", bad);
  base::Result<std::vector<int>> all = exchange_value(test.control, bad, test.timeout_ms, "open, self-test");
  if (!all.ok()) return all.status();
  OVERLACE_TRY(agree(session.clear()));
  const bool is_ordered = std::all_of(all->begin(), all->end(), [](int from) { return from < 0; });
  return SelfTestResult{test.test_order && is_ordered};
}

}  // namespace overlace::runtime::cuda_peer
