#include "src/exec/run.h"

#include <algorithm>
#include <functional>
#include <map>

#include "overlace/runtime.h"
#include "src/exec/agree.h"
#include "src/exec/backend.h"
#include "src/exec/program.h"
#include "src/runtime/state.h"

namespace overlace::exec {
namespace {

/// Programs kept per channel; each may own a workspace.
constexpr size_t kMaxPrograms = 64;

/// Runs `body`; what it throws becomes a status.
base::Status guarded(const std::function<base::Status()>& body) {
  try {
    return body();
  } catch (...) {
    return base::status_of_current_exception();
  }
}

std::string param_text(const spec::Params& params, std::string_view name) {
  const auto it = params.find(name);
  if (it == params.end() || !std::holds_alternative<int64_t>(it->second)) return "-";
  return std::to_string(std::get<int64_t>(it->second));
}

/// Of the schedule less the parameter that is each rank's own.
std::string common_digest(const spec::Schedule& schedule, std::string_view local_param) {
  spec::Schedule common = schedule;
  if (!local_param.empty()) common.params.insert_or_assign(std::string(local_param), int64_t{0});
  return spec::digest(common);
}

/// What the ranks compare: the agreement in words, and the schedule.
std::string agreement_key(const spec::Schedule& schedule, std::string_view agreement, std::string_view local_param) {
  return base::format("{}; {} q {}, digest {}", agreement, schedule.family, param_text(schedule.params, "q"),
                      common_digest(schedule, local_param));
}

/// The prepared schedules of a channel.
class Cache {
 public:
  static base::Result<Cache*> of(Channel& channel) {
    std::shared_ptr<void>& slot = channel.attachment();
    if (slot == nullptr) {
      auto cache = std::shared_ptr<Cache>(new Cache(channel));
      OVERLACE_TRY(cache->open());
      slot = cache;
    }
    return static_cast<Cache*>(slot.get());
  }
  /// Null while the channel is not traced.
  static Cache* traced(Channel& channel) {
    auto* cache = static_cast<Cache*>(channel.attachment().get());
    return cache == nullptr || cache->trace == nullptr ? nullptr : cache;
  }

  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() {
    for (const std::unique_ptr<Program>& program : programs_) give_up_workspace(*program);
  }

  base::Result<Program*> find_or_prepare(const spec::Schedule& schedule, std::string_view agreement,
                                         std::string_view local_param, const Bindings& bindings, const Bodies& bodies) {
    ++stamp_;
    const auto found = std::find_if(programs_.begin(), programs_.end(), [&](const std::unique_ptr<Program>& p) {
      return p->agreement == agreement && p->schedule == schedule;
    });
    if (found != programs_.end()) {
      std::rotate(programs_.begin(), found, found + 1);
    } else {
      OVERLACE_TRY(prepare(schedule, agreement, local_param, bindings, bodies));
    }
    Program& program = *programs_.front();
    program.shared->last_use = stamp_;
    return &program;
  }

  base::Status refuse(const spec::Schedule& schedule, std::string_view local_param, const base::Status& why) {
    const std::string digest = common_digest(schedule, local_param);
    const bool is_known =
        std::any_of(shared_.begin(), shared_.end(), [&](const auto& s) { return s->digest == digest; });
    if (is_known || !executor_->can_prepare().ok()) return why;
    return agree_all(channel_.team(), why, "", "call and schedule");
  }

  Executor& executor() { return *executor_; }
  base::Trace* trace = nullptr;
  std::string label;  // of its spans

 private:
  explicit Cache(Channel& channel) : channel_(channel) {}

  base::Status open() {
    if (channel_.team().runtime().backend() != Backend::cuda_peer) {
      executor_ = make_cpu_executor(channel_);
      return {};
    }
#if defined(OVERLACE_HAS_CUDA)
    base::Result<std::unique_ptr<Executor>> executor = make_cuda_executor(channel_);
    if (!executor.ok()) return executor.status();
    executor_ = std::move(executor).value();
    return {};
#else
    return base::error(Errc::not_supported, "exec: this build has no CUDA");
#endif
  }

  /// Puts the program in front. The exchange comes first: a rank on which the schedule cannot be expanded tells the
  /// others instead of leaving them to wait.
  base::Status prepare(const spec::Schedule& schedule, std::string_view agreement, std::string_view local_param,
                       const Bindings& bindings, const Bodies& bodies) {
    if (const base::Status can = executor_->can_prepare(); !can.ok())
      return base::error(can.code(), "{}: {}", agreement, can.message());
    Team& team = channel_.team();
    base::Result<std::unique_ptr<Program>> expanded = expand_program(schedule, agreement, team.rank(), team.size());
    const std::string key = agreement_key(schedule, agreement, local_param);
    const auto known =
        std::find_if(shared_.begin(), shared_.end(), [&](const std::shared_ptr<Shared>& s) { return s->key == key; });
    std::shared_ptr<Shared> shared = known != shared_.end() ? *known : nullptr;
    const bool is_new = shared == nullptr;
    const base::Status mine = expanded.ok() ? base::Status() : expanded.status();
    OVERLACE_TRY(is_new ? agree_all(team, mine, key, "call and schedule") : mine);
    Program& program = **expanded;
    if (is_new) {
      shared = std::make_shared<Shared>(shared_layout(program));
      shared->digest = common_digest(schedule, local_param);
      shared->key = key;
      OVERLACE_TRY(allocate_shared(*shared, schedule));
      shared_.push_back(shared);
    } else if (shared_layout(program).offsets != shared->offsets || shared_layout(program).words != shared->words) {
      return base::error(Errc::bad_schedule, "schedule {}: parameter {} changes what the ranks share", schedule.family,
                         local_param);
    }
    program.shared = shared;
    base::Status status = make_ready(program, bindings, bodies);
    if (is_new) {
      // Fresh heap memory may get a pattern: nobody puts before all have it. Nobody waits on its GPU before all have
      // loaded the kernels of this call and made its allocations. And where one rank cannot go on, none does.
      status = agree_all(team, status, "", "memory of the call");
      if (!status.ok()) free_shared(*shared), shared_.pop_back();
    }
    if (!status.ok()) {
      give_up_workspace(program);
      return status;
    }
    programs_.insert(programs_.begin(), std::move(expanded).value());
    return {};
  }

  /// What is this rank's own.
  base::Status make_ready(Program& program, const Bindings& bindings, const Bodies& bodies) {
    while (programs_.size() >= kMaxPrograms) OVERLACE_TRY(drop_oldest_program());
    OVERLACE_TRY(allocate_workspace(program));
    return executor_->prepare(program, bindings, bodies);
  }

  /// Room on the heap and among the ids, if need be that of the least recently used. All ranks made the same calls, so
  /// they give up the same ones.
  base::Status allocate_shared(Shared& shared, const spec::Schedule& schedule) {
    const std::string name = schedule.op + "." + schedule.family;
    for (;;) {
      const base::Status status = guarded([&] {
        SymmetricHeap& heap = channel_.team().runtime().heap();
        const uint64_t bytes = shared.copy_bytes * static_cast<uint64_t>(shared.copies);
        if (bytes != 0) shared.block = heap.alloc(bytes, 256, name.c_str());
        try {
          const uint32_t ids = shared.words * static_cast<uint32_t>(shared.copies);
          if (ids != 0) shared.ids = channel_.ids(ids, executor_->domain(), name.c_str());
        } catch (...) {
          if (shared.block) heap.free(shared.block);
          throw;
        }
        return base::Status();
      });
      if (status.code() != Errc::heap_exhausted || shared_.empty()) return status;
      OVERLACE_TRY(drop_oldest_shared());
    }
  }

  base::Status allocate_workspace(Program& program) {
    if (program.workspace_bytes == 0) return {};
    const std::string name = program.schedule.op + "." + program.schedule.family;
    for (;;) {
      const base::Status status = executor_->allocate(program.workspace_bytes, name.c_str(), &program.workspace);
      if (status.code() != Errc::out_of_memory || programs_.empty()) return status;
      OVERLACE_TRY(drop_oldest_program());
    }
  }

  void give_up_workspace(Program& program) {
    program.prepared.reset();
    if (program.workspace != nullptr) executor_->deallocate(program.workspace);
    program.workspace = nullptr;
  }

  /// Local: its shared part stays.
  base::Status drop_oldest_program() {
    OVERLACE_TRY(executor_->drain());
    give_up_workspace(*programs_.back());
    programs_.pop_back();
    return {};
  }

  /// Collective: nobody writes into the block any more once all have drained.
  base::Status drop_oldest_shared() {
    const auto oldest = std::min_element(shared_.begin(), shared_.end(),
                                         [](const auto& a, const auto& b) { return a->last_use < b->last_use; });
    const std::shared_ptr<Shared> victim = *oldest;
    OVERLACE_TRY(executor_->drain());
    std::erase_if(programs_, [&](const std::unique_ptr<Program>& p) {
      if (p->shared == victim) give_up_workspace(*p);
      return p->shared == victim;
    });
    shared_.erase(oldest);
    return guarded([&] {
      channel_.team().barrier();
      free_shared(*victim);
      return base::Status();
    });
  }

  /// After all ranks have met: no peer writes there any more.
  void free_shared(Shared& shared) {
    if (shared.block) channel_.team().runtime().heap().free(shared.block);
    if (shared.ids.count != 0) channel_.release(shared.ids);
  }

  Channel& channel_;
  std::unique_ptr<Executor> executor_;
  std::vector<std::shared_ptr<Shared>> shared_;
  std::vector<std::unique_ptr<Program>> programs_;  // most recently used first
  uint64_t stamp_ = 0;
};

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
  return base::error(Errc::bad_schedule, "schedule {}: no buffer {} to copy from", call.program.schedule.family,
                     copy.buffer);
}

}  // namespace

base::Status run(Channel& channel, const spec::Schedule& schedule, std::string_view agreement, const Bindings& bindings,
                 const Bodies& bodies, const RunOptions& options) {
  OVERLACE_TRY(runtime::begin_call(channel, [&] { return agreement_key(schedule, agreement, options.local_param); }));
  base::Result<Cache*> cache = Cache::of(channel);
  if (!cache.ok()) return cache.status();
  base::Result<Program*> program =
      (*cache)->find_or_prepare(schedule, agreement, options.local_param, bindings, bodies);
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
  const base::Status status = (*cache)->executor().run(call);
  ++shared.calls;
  const base::Status ended = runtime::end_call(channel);  // also of a call that has queued a part of its work
  return status.ok() ? ended : status;
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
  Cache* cache = Cache::traced(channel);
  return cache == nullptr ? work() : cache->executor().run_traced(*cache->trace, cache->label, name, work);
}

}  // namespace overlace::exec
