#include "src/study/t3/waves.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>

#include "src/base/ceil_div_pod.h"

namespace overlace::study::t3 {
namespace {

constexpr int kBlocksPerWave = 8;   // what one DMA command moves
constexpr int kBlocksInFlight = 4;  // of an all-reduce beside the GEMM
constexpr double kAllReduceBlock = 1 << 20;

enum class Kind { gemm_rd, gemm_wr, rs_rd, rs_wr };

struct Access {
  Kind kind;
  int64_t block;
  double bytes, cost;
};

enum class What { memory, wave_end, arrival, trigger };

struct Event {
  double us;
  int64_t order;  // of pushing: ties are in this order
  What what;
  int64_t block;
  bool operator>(const Event& other) const { return us != other.us ? us > other.us : order > other.order; }
};

/// Consecutive tiles of one chunk that are sent together.
struct Block {
  int64_t chunk = 0, wave = 0, first_tile = 0, end_tile = 0;
  double bytes = 0;
  int64_t updates_left = 0;  // of (tile, wavefront) pairs
  bool is_coarse = false, is_complete = false;
};

class Run {
 public:
  explicit Run(const WavesInput& input) : in_(input), tracker_(input.options.tracker) { lay_out(); }

  WavesResult finish() {
    start_wave();
    if (in_.beside == Beside::all_reduce)
      for (int i = 0; i < kBlocksInFlight; ++i) next_all_reduce_block();
    serve();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.us;
      handle(event);
      serve();
    }
    result_.all_us = std::max(result_.all_us, result_.gemm_us);
    result_.tracker_peak = tracker_.peak_entries();
    return result_;
  }

 private:
  // ---- the GEMM ----
  void lay_out() {
    const SubLayer& layer = in_.layer;
    const int64_t tiles = base::ceil_div(layer.m, kTile) * base::ceil_div(layer.n, kTile);
    waves_ = base::ceil_div(tiles, in_.cus);
    const double per_tile = 2.0 * kTile * kTile * static_cast<double>(layer.k);
    wave_us_ = per_tile / (in_.machine.tflops * 1e6 / in_.machine.cus);
    wave_reads_ = gemm_reads(layer, in_.machine, in_.output_is_cached) / static_cast<double>(waves_);
    const int64_t chunks = in_.beside == Beside::fused_reduce_scatter ? layer.ranks : 1;
    const int64_t per_chunk = std::max<int64_t>(1, base::ceil_div(waves_ * kBlocksPerWave, chunks));
    const int64_t count = std::min(tiles, chunks * per_chunk) / chunks * chunks;
    const double tile_bytes = layer.output_bytes() / static_cast<double>(tiles);
    for (int64_t i = 0; i < count; ++i) {
      Block block;
      block.chunk = i / (count / chunks);
      block.first_tile = i * tiles / count;
      block.end_tile = (i + 1) * tiles / count;
      block.wave = (block.end_tile - 1) / in_.cus;
      block.bytes = tile_bytes * static_cast<double>(block.end_tile - block.first_tile);
      block.updates_left = (block.end_tile - block.first_tile) * kWavefronts * updates_of_a_tile();
      blocks_.push_back(block);
    }
    per_chunk_ = count / chunks;
    chunks_ = chunks;
    overflowed_.assign(static_cast<size_t>(tiles) * kWavefronts, false);
  }

  int updates_of_a_tile() const { return in_.options.direct_rs ? in_.layer.ranks : 2; }
  /// The neighbour's, or under direct reduce-scatter any other rank's.
  bool is_remote(const Block& block) const {
    return is_fused() && (in_.options.direct_rs ? block.chunk + 1 < chunks_ : block.chunk == 0);
  }
  bool is_fused() const { return in_.beside == Beside::fused_reduce_scatter; }

  void start_wave() {
    const double own_us = (wave_reads_ + written_before_) / (in_.machine.dram_GBps * 1e3);
    rest_us_ = std::max(0.0, wave_us_ - own_us);
    push_memory(&compute_, {Kind::gemm_rd, -1, wave_reads_, 1});
  }

  void end_wave() {
    written_before_ = 0;
    for (; next_block_ < blocks_.size() && blocks_[next_block_].wave == wave_; ++next_block_) {
      const auto id = static_cast<int64_t>(next_block_);
      const Block& block = blocks_[next_block_];
      if (is_remote(block)) {
        send(id, block.bytes);
        continue;
      }
      written_before_ += block.bytes;
      push_memory(&compute_, {Kind::gemm_wr, id, block.bytes, is_fused() ? in_.options.update_cost : 1});
    }
    if (++wave_ < waves_)
      start_wave();
    else
      result_.gemm_us = now_;
  }

  // ---- memory ----
  void push_memory(std::deque<Access>* queue, const Access& access) {
    queue->push_back(access);
    if (queue == &compute_) pending_bytes_ += access.bytes;
  }

  /// Starts the next quantum if memory is idle.
  void serve() {
    if (is_busy_ || (compute_.empty() && comm_.empty())) return;
    served_ = choose();
    Access& access = served_->front();
    quantum_ = std::min(access.bytes, static_cast<double>(in_.options.quantum_bytes));
    is_busy_ = true;
    push(now_ + quantum_ * access.cost / (in_.machine.dram_GBps * 1e3), What::memory, -1);
  }

  std::deque<Access>* choose() {
    if (comm_.empty()) return &compute_;
    if (compute_.empty()) return &comm_;
    const double quantum = static_cast<double>(in_.options.quantum_bytes);
    const bool is_held_back = pending_bytes_ / quantum >= in_.threshold;
    const double least = in_.options.starvation_share;
    passed_over_ += 1;
    const bool takes_turn = is_held_back ? passed_over_ * least >= 1 : passed_over_ >= 2;
    if (!takes_turn) return &compute_;
    passed_over_ = 0;
    return &comm_;
  }

  void end_quantum() {
    is_busy_ = false;
    Access& access = served_->front();
    access.bytes -= quantum_;
    if (served_ == &compute_) pending_bytes_ -= quantum_;
    count(access.kind);
    if (access.bytes > 0.5) return;
    const Access done = access;
    served_->pop_front();
    on_served(done);
  }

  void count(Kind kind) {
    Traffic& bytes = result_.bytes;
    double* const of_kind[] = {&bytes.gemm_rd, &bytes.gemm_wr, &bytes.rs_rd, &bytes.rs_wr};
    *of_kind[static_cast<int>(kind)] += quantum_;
  }

  void on_served(const Access& access) {
    result_.all_us = now_;
    if (access.kind == Kind::gemm_rd) return push(now_ + rest_us_, What::wave_end, -1);
    if (in_.beside == Beside::all_reduce && access.kind == Kind::rs_rd) return send(access.block, kAllReduceBlock);
    if (in_.beside == Beside::all_reduce && access.kind == Kind::rs_wr) return next_all_reduce_block();
    if (!is_fused()) return;
    if (access.kind == Kind::rs_rd) return send(access.block, blocks_[static_cast<size_t>(access.block)].bytes);
    track(access.block);
  }

  // ---- links ----
  void send(int64_t block, double bytes) {
    link_free_ = std::max(link_free_, now_) + bytes / (in_.machine.link_GBps * in_.link_share * 1e3);
    push(link_free_ + in_.machine.link_latency_us, What::arrival, block);
  }

  /// By symmetry, what I sent arrives from somebody: on a ring for the block of the next chunk, else for my own chunk.
  void arrive(int64_t block) {
    const double cost = in_.options.comm_cost;
    if (in_.beside == Beside::all_reduce) {
      // Reduce-scatter, then all-gather: writes of as many bytes as were sent.
      return push_memory(&comm_, {Kind::rs_wr, block, kAllReduceBlock, cost});
    }
    const int64_t target = in_.options.direct_rs ? (chunks_ - 1) * per_chunk_ + block % per_chunk_ : block + per_chunk_;
    push_memory(&comm_,
                {Kind::rs_wr, target, blocks_[static_cast<size_t>(target)].bytes, cost * in_.options.update_cost});
  }

  void next_all_reduce_block() {
    const double t = in_.layer.ranks;
    const double half = (t - 1) / t * in_.layer.output_bytes();
    if (all_reduce_sent_ >= 2 * half) return;
    // The reduction reads its own part too, the all-gather does not.
    const double reads = all_reduce_sent_ < half ? 2 : 1;
    all_reduce_sent_ += kAllReduceBlock;
    push_memory(&comm_, {Kind::rs_rd, 0, reads * kAllReduceBlock, in_.options.comm_cost});
  }

  // ---- the tracker ----
  void track(int64_t id) {
    Block& block = blocks_[static_cast<size_t>(id)];
    for (int64_t tile = block.first_tile; tile < block.end_tile; ++tile) {
      for (int wavefront = 0; wavefront < kWavefronts; ++wavefront) {
        const auto cell = static_cast<size_t>(tile * kWavefronts + wavefront);
        --block.updates_left;
        if (overflowed_[cell]) continue;
        if (tracker_.update(tile, wavefront, updates_of_a_tile()) != Tracker::Outcome::full) continue;
        overflowed_[cell] = true;
        block.is_coarse = true;
        ++result_.tracker_overflows;
      }
    }
    if (block.updates_left > 0) return;
    block.is_complete = true;
    if (block.chunk + 1 == chunks_) return;
    if (!block.is_coarse) trigger(id);
    trigger_coarse_of(block);
  }

  /// Coarse blocks leave once all blocks of their wave and chunk are complete.
  void trigger_coarse_of(const Block& one) {
    const auto is_beside = [&](const Block& block) { return block.chunk == one.chunk && block.wave == one.wave; };
    for (const Block& block : blocks_)
      if (is_beside(block) && !block.is_complete) return;
    for (size_t i = 0; i < blocks_.size(); ++i)
      if (is_beside(blocks_[i]) && blocks_[i].is_coarse) trigger(static_cast<int64_t>(i));
  }

  void trigger(int64_t block) {
    push(now_ + in_.options.trigger_cycles / (in_.machine.clock_GHz * 1e3), What::trigger, block);
  }

  // ---- events ----
  void push(double us, What what, int64_t block) { events_.push({us, order_++, what, block}); }

  void handle(const Event& event) {
    switch (event.what) {
      case What::memory:
        return end_quantum();
      case What::wave_end:
        return end_wave();
      case What::arrival:
        return arrive(event.block);
      case What::trigger:
        return push_memory(
            &comm_, {Kind::rs_rd, event.block, blocks_[static_cast<size_t>(event.block)].bytes, in_.options.comm_cost});
    }
  }

  const WavesInput in_;
  Tracker tracker_;
  WavesResult result_;
  std::vector<Block> blocks_;
  std::vector<bool> overflowed_;  // (tile, wavefront) that found no entry
  int64_t waves_ = 0, per_chunk_ = 0, chunks_ = 1;
  double wave_us_ = 0, wave_reads_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t order_ = 0;
  double now_ = 0;
  int64_t wave_ = 0;
  size_t next_block_ = 0;
  double written_before_ = 0, rest_us_ = 0;
  std::deque<Access> compute_, comm_;
  std::deque<Access>* served_ = nullptr;
  double quantum_ = 0, pending_bytes_ = 0, passed_over_ = 0;
  bool is_busy_ = false;
  double link_free_ = 0, all_reduce_sent_ = 0;
};

}  // namespace

WavesResult run_waves(const WavesInput& input) { return Run(input).finish(); }

}  // namespace overlace::study::t3
