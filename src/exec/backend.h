// What a backend brings to exec: memory for workspaces, and the execution of one call.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "src/exec/program.h"

namespace overlace::exec {

/// One per channel. All calls come from the thread that uses the channel.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Who writes the signal words of this backend's schedules.
  virtual Domain domain() const = 0;
  /// Local workspaces; out_of_memory with bytes and name.
  virtual base::Status allocate(size_t bytes, const char* name, void** out) = 0;
  virtual void deallocate(void* memory) = 0;
  /// That programs have for themselves alone.
  virtual size_t workspace_bytes() const { return 0; }
  /// `capture` where nothing may be allocated or exchanged now (a captured stream).
  virtual base::Status can_prepare() { return {}; }
  /// On return this rank's earlier calls on the channel have completed.
  virtual base::Status finish_calls() { return {}; }
  /// Whether prepare() of this program loads no kernel, runs none and needs no workspace: then earlier calls may still
  /// run, here and at the peers.
  virtual bool prepares_beside_calls(const Program&, const Bodies&) const { return false; }
  /// Whether a rank may prepare while its peers still queue earlier calls: not where it may wait for what they hold.
  virtual bool prepares_beside_peers() const { return true; }
  /// After memory and ids are there, before the first run, whose arguments these are: streams, plans, warm-up, which
  /// may write whatever the run will write. May fill Program::prepared.
  virtual base::Status prepare(Program& program, const Bindings& bindings, const Bodies& bodies) = 0;
  /// Before anything of the call is queued: refuses what could only fail in its middle; and where it is about to be
  /// captured, the graph keeps what `hold` gives until it is destroyed.
  virtual base::Status retain(const Call&, const std::function<std::shared_ptr<void>()>& /*hold*/) { return {}; }
  /// Whether the call that `retain` saw last is captured; none: nobody has asked.
  virtual std::optional<bool> is_captured() const { return {}; }
  /// Whether calls can begin with a barrier of the team, as those do whose memory is shared (Block); alike on all
  /// ranks.
  virtual bool has_barrier() const { return true; }
  /// cpu: done on return. cuda: queued. Sets Call::has_begun; an error behind that aborts the runtime.
  virtual base::Status run(const Call& call) = 0;
  /// Everything issued by this channel has completed and is visible at the peers; then it may be given up. Does not
  /// wait for what others have queued.
  virtual base::Status drain() = 0;
  /// Before everything goes, after an abort too: nothing touches its memory any more.
  virtual void finish() {}
  /// A trace begins: what can be made ahead for it.
  virtual base::Status prepare_trace() { return {}; }
  /// `work` as a span of category `other`.
  virtual base::Status run_traced(base::Trace& trace, std::string_view label, const char* name,
                                  const std::function<base::Status()>& work) = 0;
  /// Spans of calls that were traced but not yet reported.
  virtual base::Result<base::Trace> collect() { return base::Trace{}; }
};

std::unique_ptr<Executor> make_cpu_executor(Channel& channel);
/// Defined in exec/cuda; called only with OVERLACE_HAS_CUDA.
base::Result<std::unique_ptr<Executor>> make_cuda_executor(Channel& channel);

}  // namespace overlace::exec
