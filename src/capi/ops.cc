// Operators, their timelines and collectives of the C API.
#include <array>
#include <cstdint>
#include <optional>

#include "overlace/net_engine.h"
#include "overlace/operator.h"
#include "overlace/timeline.h"
#include "src/base/nvtx.h"
#include "src/capi/convert.h"
#include "src/exec/gemm.h"
#include "src/exec/run.h"
#include "src/ops/common/call.h"
#include "src/runtime/state.h"
#include "src/spec/operators.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace {

/// What a call of an operator needs first.
struct Call {
  Entry entry;
  std::shared_ptr<ChannelObject> object;
  const spec::OperatorDef* op = nullptr;
  ops::CallArgs args;
  base::Status read;  // of the arguments

  Channel& channel() const { return *object->channel; }
};

base::Status enter_call(std::string_view name, const ovl_channel* channel, const char* op, const ovl_arg* args,
                        int count, Call* call) {
  OVERLACE_TRY(check_not_null({name, "op"}, op));
  call->op = spec::find_operator(op);
  if (call->op == nullptr)
    return base::invalid_argument("{}: op is \"{}\", wanted {}", name, op, spec::operator_names());
  OVERLACE_TRY(enter({name, "channel"}, channel, &call->entry, &call->object));
  base::Result<ops::CallArgs> read = args_of(*call->op, args, count);
  call->read = read.status();
  if (read.ok()) call->args = std::move(*read);
  return {};
}

base::Status run_once(const Call& call, const ops::Posed& posed, const ScheduleTexts& plan) {
  try {
    return ops::run_posed(call.channel(), call.args, posed, plan.schedule, plan.serial);
  } catch (...) {
    return base::status_of_current_exception();
  }
}

/// Chosen schedules that the heap has no room for, or that differ between ranks, give way to one for all: that the call
/// cannot be made so is known to all ranks. Where the peers know the call and have begun it, theirs is taken.
base::Status run(const Call& call, const ops::Posed& posed, ScheduleObject& schedule) {
  const std::string_view local_param = call.op->local_param;
  Channel& channel = call.channel();
  for (bool has_met = false;;) {
    exec::follow_peers(channel, schedule.chosen.has_value());
    base::Status status = run_once(call, posed, schedule.plan());
    if (status.ok()) return status;
    const exec::Impasse impasse = exec::impasse(channel);
    if (impasse == exec::Impasse::peers_have_another) {
      status = schedule.follow_peers(channel, local_param);
      if (status.ok()) continue;
      call.entry.runtime().abort(status.code(), status.message());  // the peers are in the call
      return status;
    }
    const bool is_full = impasse == exec::Impasse::heap_is_full;
    if (!is_full && (impasse == exec::Impasse::none || has_met)) return status;
    const base::Result<bool> gives_way = schedule.give_way(channel, local_param, impasse);
    if (!gives_way.ok() || !*gives_way) return status;
    has_met = true;
    call.entry.runtime().state().stats.smaller_plans += is_full ? 1 : 0;
  }
}

/// Elements for each rank and from each, where they are not the same for all.
struct Counts {
  const int64_t* send;
  const int64_t* recv;
};

/// A collective of the team's engine, with what the engines do not check themselves.
struct Collective {
  std::string_view name;
  const void* send;
  const void* recv;
  int64_t count;
  int dtype;
  std::optional<Counts> counts = {};  // instead of count
};

constexpr std::string_view kPrefix = "ovl_";
constexpr int64_t kMostElements = int64_t{1} << 40;

/// One side of a collective.
struct Side {
  const char* name;
  const void* pointer;
  int64_t elements;
};

base::Result<int64_t> sum_of(std::string_view call, std::string_view name, const int64_t* counts, int ranks) {
  OVERLACE_TRY(check_not_null({call, name}, counts));
  int64_t sum = 0;
  for (int p = 0; p < ranks; ++p) {
    if (counts[p] < 0 || counts[p] > kMostElements - sum)
      return base::invalid_argument("{}: {}[{}] is {}, wanted 0 or more, and a sum of at most 2^40", call, name, p,
                                    counts[p]);
    sum += counts[p];
  }
  return sum;
}

base::Result<std::array<Side, 2>> sides_of(const Collective& wanted, const Team& team) {
  std::array<Side, 2> sides = {Side{"send", wanted.send, wanted.count}, Side{"recv", wanted.recv, wanted.count}};
  if (!wanted.counts) {
    if (wanted.count < 0 || wanted.count > kMostElements)
      return base::invalid_argument("{}: count is {}, wanted 0 to 2^40", wanted.name, wanted.count);
    return sides;
  }
  const auto [send, recv] = *wanted.counts;
  const base::Result<int64_t> sent = sum_of(wanted.name, "send_counts", send, team.size());
  if (!sent.ok()) return sent.status();
  const base::Result<int64_t> received = sum_of(wanted.name, "recv_counts", recv, team.size());
  if (!received.ok()) return received.status();
  sides[0].elements = *sent;
  sides[1].elements = *received;
  const int me = team.rank();
  if (send[me] != recv[me])
    return base::invalid_argument("{}: rank {} sends itself {} elements and wants {} of itself", wanted.name, me,
                                  send[me], recv[me]);
  return sides;
}

template <class Body>
int run_collective(ovl_channel* channel, const Collective& wanted, Body body) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    OVERLACE_TRY(enter({wanted.name, "channel"}, channel, &entry, &object));
    const base::Result<DType> dtype = dtype_of({wanted.name, "dtype"}, wanted.dtype);
    if (!dtype.ok()) return dtype.status();
    const base::Result<std::array<Side, 2>> sides = sides_of(wanted, object->channel->team());
    if (!sides.ok()) return sides.status();
    for (const Side& side : *sides) {
      if (side.elements == 0) continue;
      OVERLACE_TRY(check_not_null({wanted.name, side.name}, side.pointer));
      const size_t past = reinterpret_cast<uintptr_t>(side.pointer) % dtype_bytes(*dtype);
      if (past != 0)
        return base::invalid_argument("{}: {} must be aligned to its {} bytes of {}, got an address {} past that",
                                      wanted.name, side.name, dtype_bytes(*dtype), dtype_name(*dtype), past);
    }
    const base::NvtxRange range("operator", [&] { return std::string(wanted.name).substr(kPrefix.size()); });
    entry.runtime().state().enter();  // no findings: the peers would wait for this rank
    NetEngine* const engine = object->channel->team().net();
    if (engine == nullptr)
      return base::error(Errc::not_supported,
                         "{}: team \"{}\" has no collectives engine: OVERLACE_NET_ENGINE is none, NCCL was not found, "
                         "or ranks share a GPU",
                         wanted.name, object->channel->team().name());
    for (const Side& side : *sides) {
      if (side.elements == 0) continue;
      runtime::OperandPlaces& places = entry.runtime().state().places;
      OVERLACE_TRY(places.check(wanted.name, side.name, side.pointer, object->channel->team().rank()));
    }
    return body(*engine, object->channel->team(), *dtype, static_cast<size_t>(wanted.count), object->channel->stream());
  });
}

}  // namespace

int ovl_run(ovl_channel* channel, const char* op, const ovl_arg* args, int count, const char* plan) {
  return guarded([&]() -> base::Status {
    Call call;
    OVERLACE_TRY(enter_call("ovl_run", channel, op, args, count, &call));
    OVERLACE_TRY(call.read);
    const ops::Posed posed = ops::pose_checked(call.channel(), *call.op, call.args);
    if (!posed.fits) return posed.status;
    const base::Result<std::shared_ptr<ScheduleObject>> schedule =
        schedule_of(call.entry.object(), *call.object, posed.problem->op, plan == nullptr ? "" : plan);
    if (!schedule.ok()) return schedule.status();
    OVERLACE_TRY(run(call, posed, **schedule));
    const Context& context = *call.entry.object().context;
    if (context.tunes_at_first_use())
      tune_first_use(context, *call.object, posed.problem->op, (*schedule)->chosen.has_value());
    return {};
  });
}

int ovl_call(ovl_channel* channel, const char* op, const ovl_arg* args, int count, ovl_schedule* schedule) {
  return guarded([&]() -> base::Status {
    const base::Result<std::shared_ptr<ScheduleObject>> found =
        find<ScheduleObject>({"ovl_call", "schedule"}, schedule);
    if (!found.ok()) return found.status();
    Call call;
    OVERLACE_TRY(enter_call("ovl_call", channel, op, args, count, &call));
    // The peers, who may be waiting already, learn why this rank does not run.
    if (!call.read.ok())
      return exec::refuse(call.channel(), (*found)->plan().schedule, call.op->local_param, call.read);
    return run(call, ops::pose_checked(call.channel(), *call.op, call.args), **found);
  });
}

int ovl_cpu_gemm(const char* provider) {
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_cpu_gemm", "provider"}, provider));
    return exec::set_cpu_gemm_provider(provider);
  });
}

int ovl_timeline_begin(ovl_channel* channel, ovl_timeline** timeline) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    OVERLACE_TRY(check_not_null({"ovl_timeline_begin", "timeline"}, timeline));
    OVERLACE_TRY(enter({"ovl_timeline_begin", "channel"}, channel, &entry, &object));
    auto made = std::make_shared<TimelineObject>();
    made->timeline = std::make_unique<Timeline>(*object->channel);
    give_child(entry.shared(), std::move(made), timeline);
    return {};
  });
}

int ovl_timeline_label(ovl_timeline* timeline, const char* label) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<TimelineObject> object;
    OVERLACE_TRY(check_not_null({"ovl_timeline_label", "label"}, label));
    OVERLACE_TRY(enter({"ovl_timeline_label", "timeline"}, timeline, &entry, &object));
    object->timeline->label(label);
    return {};
  });
}

int ovl_timeline_write(ovl_timeline* timeline, const char* path) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<TimelineObject> object;
    OVERLACE_TRY(check_not_null({"ovl_timeline_write", "path"}, path));
    OVERLACE_TRY(enter({"ovl_timeline_write", "timeline"}, timeline, &entry, &object));
    Registry::instance().remove(number_of(timeline));
    object->timeline->write(path);
    return {};
  });
}

int ovl_nvtx(int on, int* before) {
  return guarded([&]() -> base::Status {
    if (on != 0 && on != 1) return base::invalid_argument("ovl_nvtx: on is {}, wanted 0 or 1", on);
    const bool was = set_nvtx(on != 0);
    if (before != nullptr) *before = was ? 1 : 0;
    return {};
  });
}

int ovl_all_gather(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype) {
  return run_collective(channel, {"ovl_all_gather", send, recv, count, dtype},
                        [&](NetEngine& engine, Team&, DType type, size_t n, StreamRef stream) -> base::Status {
                          engine.all_gather(send, recv, n, type, stream);
                          return {};
                        });
}

int ovl_reduce_scatter(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype) {
  return run_collective(channel, {"ovl_reduce_scatter", send, recv, count, dtype},
                        [&](NetEngine& engine, Team&, DType type, size_t n, StreamRef stream) -> base::Status {
                          engine.reduce_scatter(send, recv, n, type, stream);
                          return {};
                        });
}

int ovl_all_reduce(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype) {
  return run_collective(channel, {"ovl_all_reduce", send, recv, count, dtype},
                        [&](NetEngine& engine, Team&, DType type, size_t n, StreamRef stream) -> base::Status {
                          engine.all_reduce(send, recv, n, type, stream);
                          return {};
                        });
}

int ovl_all_to_all(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype) {
  return run_collective(channel, {"ovl_all_to_all", send, recv, count, dtype},
                        [&](NetEngine& engine, Team&, DType type, size_t n, StreamRef stream) -> base::Status {
                          engine.all_to_all(send, recv, n, type, stream);
                          return {};
                        });
}

int ovl_all_to_allv(ovl_channel* channel, const void* send, const int64_t* send_counts, void* recv,
                    const int64_t* recv_counts, int dtype) {
  const Collective wanted{"ovl_all_to_allv", send, recv, 0, dtype, Counts{send_counts, recv_counts}};
  return run_collective(channel, wanted,
                        [&](NetEngine& engine, Team& team, DType type, size_t, StreamRef stream) -> base::Status {
                          const char* from = static_cast<const char*>(send);
                          char* to = static_cast<char*>(recv);
                          engine.group_begin("all_to_allv");
                          for (int p = 0; p < team.size(); ++p) {
                            const size_t out = static_cast<size_t>(send_counts[p]) * dtype_bytes(type);
                            const size_t in = static_cast<size_t>(recv_counts[p]) * dtype_bytes(type);
                            if (out > 0) engine.send(from, out, p, stream);
                            if (in > 0) engine.recv(to, in, p, stream);
                            from += out;
                            to += in;
                          }
                          engine.group_end();
                          return {};
                        });
}

int ovl_broadcast(ovl_channel* channel, void* buffer, int64_t count, int dtype, int root) {
  return run_collective(channel, {"ovl_broadcast", buffer, buffer, count, dtype},
                        [&](NetEngine& engine, Team& team, DType type, size_t n, StreamRef stream) -> base::Status {
                          if (root < 0 || root >= team.size())
                            return base::invalid_argument("ovl_broadcast: root is {}, wanted 0 to {}", root,
                                                          team.size() - 1);
                          engine.broadcast(buffer, n, type, root, stream);
                          return {};
                        });
}
