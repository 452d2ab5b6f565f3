#include "src/exec/run.h"

#include "overlace/runtime.h"
#include "src/base/nvtx.h"
#include "src/exec/cache.h"
#include "src/exec/timeline.h"
#include "src/runtime/state.h"

namespace overlace::exec {
namespace {

/// From and to of a copy out; the buffer's rows of this call's copy.
base::Result<Call::Out> resolve(const Call& call, const Team& team, const CopyOut& copy) {
  if (copy.buffer.empty()) return Call::Out{copy.from, copy.to, false};
  const std::vector<spec::Buffer>& buffers = call.program.schedule.buffers;
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].name != copy.buffer) continue;
    const std::vector<int64_t>& shape = call.program.expansion.buffer_shapes[b];
    spec::Box box{.buffer = static_cast<int>(b), .rank = team.rank(), .ndim = static_cast<int>(shape.size())};
    for (size_t i = 0; i < shape.size(); ++i) box.count[i] = shape[i];
    box.begin[0] = copy.first_row;
    box.count[0] = copy.to.dim(0);
    return Call::Out{view_of(call, team, box), copy.to, true};
  }
  return base::error(Errc::bad_schedule, "schedule {}: no buffer {} to copy from; wanted: one of its buffers",
                     call.program.schedule.family, copy.buffer);
}

/// "qkv ag_gemm hetero_unfused_1d".
std::string call_name(Channel& channel, const spec::Schedule& schedule) {
  const Cache* const known = Cache::known(channel);
  return labelled(known == nullptr ? "" : known->label, base::format("{} {}", schedule.op, schedule.family));
}

}  // namespace

base::Status run(Channel& channel, const spec::Schedule& schedule, std::string_view agreement, const Bindings& bindings,
                 const Bodies& bodies, const RunOptions& options) {
  return run(
      channel, schedule, [&] { return std::string(agreement); }, bindings, bodies, options);
}

Program* known_program(Channel& channel, const spec::Schedule& schedule, uint64_t serial) {
  Cache* const known = Cache::known(channel);
  return known == nullptr ? nullptr : known->find(schedule, serial);
}

std::shared_ptr<void>& note_of(Program& program) { return program.note; }

std::shared_ptr<void>* note_of(Channel& channel) {
  Cache* const known = Cache::known(channel);
  return known == nullptr ? nullptr : &known->note;
}

base::Status run(Channel& channel, const spec::Schedule& schedule, const std::function<std::string()>& agreement,
                 const Bindings& bindings, const Bodies& bodies, const RunOptions& options) {
  const base::NvtxRange range("operator", [&] { return call_name(channel, schedule); });
  if (Cache* known = Cache::known(channel); known != nullptr) known->begin_call();
  // By reference: a std::function allocates for as much as this captures.
  const auto key = [&] { return agreement_key(schedule, agreement(), options.local_param); };
  OVERLACE_TRY(runtime::begin_call(channel, std::cref(key)));
  base::Result<Cache*> cache = Cache::of(channel);
  if (!cache.ok()) return cache.status();
  base::Result<Program*> program = (*cache)->find_or_prepare(schedule, agreement, options, bindings, bodies);
  if (!program.ok()) return program.status();
  OVERLACE_TRY(check_bindings(**program, bindings));
  Shared& shared = *(*program)->shared;
  const uint64_t copies = static_cast<uint64_t>(shared.copies);
  Call call{.program = **program,
            .bindings = bindings,
            .bodies = bodies,
            .copy = static_cast<int>(shared.calls % copies),
            .epoch = shared.calls / copies + 1,
            .trace = options.trace != nullptr ? options.trace : (*cache)->trace,
            .copies_out = {},
            .label = (*cache)->label};
  for (const CopyOut& copy : options.copies_out) {
    auto resolved = resolve(call, channel.team(), copy);
    if (!resolved.ok()) return resolved.status();
    call.copies_out.push_back(std::move(resolved).value());
  }
  Executor& executor = (*cache)->executor();
  // Before anything is captured: a graph must not outlive what it uses.
  OVERLACE_TRY(executor.retain(call, [&] { return Cache::hold(**program); }));
  const base::Status status = guarded([&] { return executor.run(call); });
  ++shared.calls;
  // Half a call leaves signals that nobody can take back: the peers must not wait for the rest.
  if (!status.ok() && call.has_begun) channel.team().runtime().abort(status.code(), status.message());
  const base::Status ended =
      runtime::end_call(channel, executor.is_captured());  // also of a call that has queued a part of its work
  return status.ok() ? ended : status;
}

Impasse impasse(Channel& channel) {
  const Cache* known = Cache::known(channel);
  return known == nullptr ? Impasse::none : known->impasse();
}

void follow_peers(Channel& channel, bool follows) {
  if (Cache* known = Cache::known(channel); known != nullptr) known->follows_peers = follows;
}

spec::Schedule agreed_schedule(Channel& channel, std::string_view local_param, int64_t value) {
  spec::Schedule schedule = Cache::known(channel)->peers_schedule();
  if (!local_param.empty()) schedule.params.insert_or_assign(std::string(local_param), value);
  return schedule;
}

std::shared_ptr<void> hold_last_call(Channel& channel) {
  base::Result<Cache*> cache = Cache::of(channel);
  Program* const program = cache.ok() ? (*cache)->last() : nullptr;
  return program == nullptr ? nullptr : Cache::hold(*program);
}

base::Status refuse(Channel& channel, const spec::Schedule& schedule, std::string_view local_param,
                    const base::Status& why) {
  base::Result<Cache*> cache = Cache::of(channel);
  return cache.ok() ? (*cache)->refuse(schedule, local_param, why) : why;
}

base::Result<base::Trace> collect_trace(Channel& channel) {
  base::Result<Cache*> cache = Cache::of(channel);
  if (!cache.ok()) return cache.status();
  return (*cache)->executor().collect();
}

void set_trace(Channel& channel, base::Trace* trace) {
  base::Result<Cache*> cache = Cache::of(channel);
  cache.status().or_throw();
  if (trace != nullptr) (*cache)->executor().prepare_trace().or_throw();
  (*cache)->trace = trace;
  (*cache)->label.clear();
}

void set_trace_label(Channel& channel, std::string_view label) {
  Cache* cache = Cache::traced(channel);
  if (cache != nullptr) cache->label = label;
}

base::Status run_traced(Channel& channel, const char* name, const std::function<base::Status()>& work) {
  const base::NvtxRange range("other", [&] { return name; });
  Cache* cache = Cache::traced(channel);
  return cache == nullptr ? work() : cache->executor().run_traced(*cache->trace, cache->label, name, work);
}

}  // namespace overlace::exec
