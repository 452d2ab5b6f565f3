// One rank of a data parallel run: the engine's actions, carried out over an AsyncCollective, on memory of the host or
// of a GPU.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "overlace/async_collective.h"
#include "overlace/co2.h"
#include "src/base/status.h"
#include "src/train/co2/buckets.h"
#include "src/train/co2/control.h"
#include "src/train/co2/deadline.h"
#include "src/train/co2/device_state.h"
#include "src/train/co2/engine.h"
#include "src/train/co2/options.h"
#include "src/train/co2/pass.h"
#include "src/train/co2/round_trace.h"

namespace overlace::train {

struct Parameter {
  std::string name;
  void* data = nullptr;
  DType dtype = DType::fp32;  // fp32, bf16, fp16
  int64_t count = 0;          // elements that this rank holds
  int64_t group_count = 0;    // elements that its group holds; 0: the same
};

struct ReplicaOptions {
  Co2Options co2;
  DType wire_dtype = DType::fp32;  // fp32, bf16; i8 where the transport takes residuals
  int64_t bucket_bytes = kBucketBytes;
  int64_t timeout_ms = 300000;    // of a wait for the other groups
  bool is_deadline_auto = false;  // it becomes shorter by what rounds are waited for, ArrivalDeadline
  /// A boundary waits for all buckets before the first pass, and one whose launch fails is gone through. So a failure
  /// leaves the anchor of before or after a boundary, never of both.
  bool is_boundary_whole = false;
  int threads = 0;         // of the pass; 0: chosen
  int shard_degree = 1;    // ranks of a group
  int device = -1;         // parameters are memory of this GPU, and the state beside them is, too; -1: of the host
  void* stream = nullptr;  // cudaStream_t of the first calls, with a device
  /// Makes the state with a device; for tests. Null: open_device_state.
  std::function<std::unique_ptr<DeviceState>(const DeviceStateOptions&)> open_state;
  /// Adds up over the group; needed where shard_degree > 1.
  std::function<void(std::span<double>)> reduce_in_group;
  /// At the switch to cool-down: the mean over the groups of what the inner optimizer keeps.
  std::function<void()> average_inner;
};

/// The round whose increment a boundary took in. On a GPU it is known at the next boundary, or behind a flush.
struct RoundStats {
  int64_t round = 0, steps = 0, bytes = 0;
  int64_t link_bytes = 0;          // sent by this rank, by the count of an emulated link; header and meetings included
  double round_ms = 0;             // from the boundary before to this one
  double comm_ms = 0;              // from the first launch to the last completion
  double exposed_ms = 0;           // what the boundary waited
  double pass_ms = 0;              // of its passes
  double lambda = 1, clipped = 0;  // share of elements at the bound
  double increment_norm = 0, mean_norm = 0, momentum_norm = 0;
  int last_rank = -1;  // who came last
  bool is_dropped = false;
};

class Replica {
 public:
  /// Compares options and parameters with all groups: PlanMismatch on all of them where they differ. Throws
  /// InvalidArgument for what is refused, before anything moved.
  Replica(const ReplicaOptions& options, std::vector<Parameter> parameters, AsyncCollective& outer);
  /// Aborts `outer` where tickets are open, those that a stream waits for too, and waits for them. Memory that a
  /// transport may still write to then stays with the process.
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Gradients are averaged over the groups before the next inner step.
  bool wants_gradient_mean() const { return engine_.wants_gradient_mean(); }
  /// The next on_inner_step reads or writes parameters.
  bool needs_parameters() const { return engine_.next_step_has_actions(); }
  /// After each attempted inner step, skipped ones included; `lr`: of the inner optimizer. Does the boundary where one
  /// is due. Throws Timeout, PeerLost, Desync, NonFinite. With a device it queues the boundary on the stream, and
  /// throws what came of the one before; it waits for none but that, and with is_boundary_whole, is_deadline_auto or
  /// several ranks a group for the other groups.
  void on_inner_step(double lr);
  /// Everything on its way goes in: x = a, equal in all groups.
  void flush();

  /// With a device: the stream of later calls.
  void use(void* stream);

  int64_t elements() const { return elements_; }
  /// The place in Co2Options::schedule of the round that the next inner step belongs to.
  int64_t round() const { return engine_.state().round / options_.co2.fragments; }
  /// Copies the anchor to a span of the size elements().
  void copy_anchor(std::span<float> anchor) const;
  /// Anchor and momentum in the host's memory; empty with a device.
  std::span<const float> anchor() const { return anchor_; }
  std::span<const float> momentum() const { return momentum_; }
  /// FNV-1a of anchor and momentum (I3).
  uint64_t anchor_hash() const;
  const Engine& engine() const { return engine_; }
  const ControlPod& control() const { return control_; }
  const std::vector<BucketRange>& buckets() const { return buckets_; }
  /// The last rounds, at most kKeptRounds.
  const std::deque<RoundStats>& stats() const { return stats_; }
  static constexpr size_t kKeptRounds = 4096;
  /// Rounds of this rank as spans that lie beside those of `overlace sim graph co2`. A flush shows only the exchange
  /// that it waits for.
  base::Trace trace() const;
  /// Increments that came in, dropped ones included.
  int64_t rounds_taken_in() const { return rounds_taken_in_; }
  /// Boundaries that wrote parameters, and loads.
  int64_t writes() const { return writes_; }

  /// Everything, parameters included, waiting for what is on its way first (which does not change what comes out).
  /// Throws Timeout, PeerLost.
  std::string save();
  /// What save() gave, of a run with the same options, parameters and groups. Errc: corrupt, version_mismatch, stale;
  /// nothing changes then.
  base::Status load(std::string_view bytes);

 private:
  void carry_out(const Action& action);
  void wait_for(int bucket, int64_t round);
  void launch(int bucket, int64_t round);
  void send(int bucket, const Bucket& sent, int64_t round);
  void begin(const Action& action);
  void pass(const Action& action);
  void reduce_sums();
  void moved(bool is_flush);
  void end(const Action& action);
  void run_due();
  void carry_out_due();
  void settle();
  void took_in(const FactsPod& facts, const KnobsPod& knobs, int64_t now_ns, bool is_flush);
  void take_reports();
  void hold_image();
  void drop_image();
  StateImage image();
  StreamRef stream() const { return device_ == nullptr ? StreamRef::cpu() : device_->stream(); }
  bool waits_on_host() const { return device_ == nullptr || options_.is_boundary_whole || options_.is_deadline_auto; }
  void note_times(Ticket ticket);
  bool waits_at_once() const;
  int64_t timeout_ms() const { return options_.is_deadline_auto ? deadline_.ms() : options_.timeout_ms; }
  void forget_sums();
  void agree_at_start();
  float divisor_of(int64_t steps) const;
  bool is_weighted() const { return options_.co2.samples > 0; }
  std::string dump() const;
  double next_lr_ratio();
  std::string describe() const;
  PassMemory memory();
  Bucket sent_of(int bucket, int64_t round);
  size_t slot(int bucket) const { return static_cast<size_t>(bucket + 1); }
  bool has_momentum() const { return train::has_momentum(options_.co2) || options_.co2.kappa > 0; }
  bool has_kept() const { return keep_of(options_.co2, outer_.size()) > 0; }
  bool has_residual() const { return options_.wire_dtype != DType::fp32; }
  /// The type of the wire buffer: what travels as int8 is packed by the transport.
  static DType kept_dtype(DType wire) { return wire == DType::i8 ? DType::fp32 : wire; }
  static constexpr int64_t kNoRound = -2;

  const ReplicaOptions options_;
  std::vector<Parameter> parameters_;
  AsyncCollective& outer_;
  std::vector<BucketRange> buckets_;
  Engine engine_;
  Threads threads_;
  uint64_t config_hash_ = 0, own_hash_ = 0;  // of what all groups have alike; of what a checkpoint must fit
  double all_samples_ = 0;                   // of unequal groups: what all of them see in whole rounds
  std::vector<float> anchor_, momentum_, kept_, residual_;  // momentum_, kept_: empty where the rule has none
  std::vector<char> wire_;
  std::vector<char> image_;              // with a device: the parameters, while a checkpoint is made or loaded
  std::unique_ptr<DeviceState> device_;  // null: the state is what lies here
  int64_t elements_ = 0;
  bool has_incoming_ = false;   // of the boundary that is under way
  std::vector<Ticket> waited_;  // by the stream, in this boundary
  struct Queued {               // a boundary that the stream may not have come to
    RoundStats stats;
    KnobsPod knobs;
    std::vector<Ticket> waited;
    bool is_flush = false, is_flushing = false;  // it is what a flush ends with; one of its boundaries
  };
  std::deque<Queued> queued_;
  std::vector<PassTensor> tensors_;
  std::vector<TensorPod> bounds_;
  std::vector<SumsPod> sums_;
  ControlPod control_;
  KnobsPod knobs_;
  HeaderPod own_header_;                                               // as sent
  std::unique_ptr<HeaderPod> header_ = std::make_unique<HeaderPod>();  // reduced in place
  std::vector<uint64_t> tickets_;                                      // by slot; 0: settled
  double lr_sum_ = 0, last_mean_lr_ = 0;                               // of this round; of the one before
  int64_t lr_steps_ = 0, last_boundary_ns_ = 0;
  RoundStats current_;
  ArrivalDeadline deadline_;
  int64_t first_launch_ns_ = 0, last_complete_ns_ = 0;  // of the tickets that were waited for
  RoundTrace rounds_;
  bool is_flushing_ = false, has_failed_ = false;  // in a flush; a wait has thrown
  base::Status failure_;                           // thrown once the boundary is whole
  base::Status unsent_;                            // a launch of unsent_round_ failed, and boundaries are whole
  int64_t unsent_round_ = -1;
  std::deque<RoundStats> stats_;
  int64_t rounds_taken_in_ = 0, writes_ = 0;
};

/// With the rule's own values filled in. Throws InvalidArgument for what Replica refuses before it talks to others.
ReplicaOptions checked_options(const ReplicaOptions& options, const std::vector<Parameter>& parameters);

}  // namespace overlace::train
