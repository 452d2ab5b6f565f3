// Operators, their timelines and collectives of the C API.
#include <cstdint>

#include "overlace/net_engine.h"
#include "overlace/operator.h"
#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/ag_wgrad.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "src/capi/convert.h"
#include "src/exec/gemm.h"
#include "src/exec/run.h"
#include "src/runtime/state.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace {

/// A field of the arguments and where its view goes.
struct Field {
  std::string_view name;
  const ovl_tensor* from;
  TensorView* to;
};

base::Status read_fields(std::string_view call, std::initializer_list<Field> fields) {
  for (const Field& field : fields) {
    base::Result<TensorView> view = view_of({call, field.name}, *field.from);
    if (!view.ok()) return view.status();
    *field.to = *view;
  }
  return {};
}

/// What every operator needs first.
struct Call {
  Entry entry;
  std::shared_ptr<ChannelObject> channel;
  std::shared_ptr<ScheduleObject> schedule;
};

base::Status enter_call(std::string_view name, const ovl_channel* channel, const ovl_schedule* schedule, Call* call) {
  base::Result<std::shared_ptr<ScheduleObject>> found = find<ScheduleObject>({name, "schedule"}, schedule);
  if (!found.ok()) return found.status();
  call->schedule = std::move(*found);
  return enter({name, "channel"}, channel, &call->entry, &call->channel);
}

/// Runs with arguments that could be read; else the peers, who may be waiting already, learn why this rank does not.
/// Chosen schedules that the heap has no room for, or that differ between ranks, give way to one for all: that the call
/// cannot be made so is known to all ranks. Where the peers know the call and have begun it, theirs is taken.
template <class Args>
base::Status run_or_refuse(const Call& call, const base::Status& read, const Args& args, std::string_view op) {
  const std::string_view local_param = spec::find_operator(op)->local_param;
  Channel& channel = *call.channel->channel;
  ScheduleObject& schedule = *call.schedule;
  if (!read.ok()) return exec::refuse(channel, schedule.plan().schedule, local_param, read);
  for (bool has_met = false;;) {
    base::Status status;
    exec::follow_peers(channel, schedule.chosen.has_value());
    try {
      ops::run(channel, args, schedule.plan().schedule);
      return {};
    } catch (...) {
      status = base::status_of_current_exception();
    }
    const exec::Impasse impasse = exec::impasse(channel);
    if (impasse == exec::Impasse::peers_have_another) {
      status = schedule.follow_peers(channel, local_param);
      if (status.ok()) continue;
      call.entry.runtime().abort(status.code(), status.message());  // the peers are in the call
      return status;
    }
    const bool is_full = impasse == exec::Impasse::heap_is_full;
    const bool is_free = is_full || impasse == exec::Impasse::gpu_is_taken;  // to be met more than once
    if (!is_free && (impasse == exec::Impasse::none || has_met)) return status;
    const base::Result<bool> gives_way = schedule.give_way(channel, local_param, impasse);
    if (!gives_way.ok() || !*gives_way) return status;
    has_met = true;
    call.entry.runtime().state().stats.smaller_plans += is_full ? 1 : 0;
  }
}

/// A collective of the team's engine, with what the engines do not check themselves.
struct Collective {
  std::string_view name;
  const void* send;
  const void* recv;
  int64_t count;
  int dtype;
};

template <class Body>
int run_collective(ovl_channel* channel, const Collective& wanted, Body body) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    OVERLACE_TRY(enter({wanted.name, "channel"}, channel, &entry, &object));
    const base::Result<DType> dtype = dtype_of({wanted.name, "dtype"}, wanted.dtype);
    if (!dtype.ok()) return dtype.status();
    if (wanted.count < 0 || wanted.count > int64_t{1} << 40)
      return base::invalid_argument("{}: count is {}, wanted 0 to 2^40", wanted.name, wanted.count);
    for (const auto& [name, pointer] : {std::pair("send", wanted.send), std::pair("recv", wanted.recv)}) {
      if (wanted.count == 0) break;
      OVERLACE_TRY(check_not_null({wanted.name, name}, pointer));
      const size_t past = reinterpret_cast<uintptr_t>(pointer) % dtype_bytes(*dtype);
      if (past != 0)
        return base::invalid_argument("{}: {} must be aligned to its {} bytes of {}, got an address {} past that",
                                      wanted.name, name, dtype_bytes(*dtype), dtype_name(*dtype), past);
    }
    entry.runtime().check();
    NetEngine* const engine = object->channel->team().net();
    if (engine == nullptr)
      return base::error(Errc::not_supported,
                         "{}: team \"{}\" has no collectives engine: OVERLACE_NET_ENGINE is none, NCCL was not found, "
                         "or ranks share a GPU",
                         wanted.name, object->channel->team().name());
    for (const auto& [name, pointer] : {std::pair("send", wanted.send), std::pair("recv", wanted.recv)}) {
      if (wanted.count == 0) break;
      runtime::OperandPlaces& places = entry.runtime().state().places;
      OVERLACE_TRY(places.check(wanted.name, name, pointer, object->channel->team().rank()));
    }
    return body(*engine, object->channel->team(), *dtype, static_cast<size_t>(wanted.count), object->channel->stream());
  });
}

}  // namespace

int ovl_ag_gemm(ovl_channel* channel, const ovl_ag_gemm_args* args, ovl_schedule* schedule) {
  return guarded([&]() -> base::Status {
    Call call;
    OVERLACE_TRY(check_struct({"ovl_ag_gemm", "args"}, args));
    OVERLACE_TRY(enter_call("ovl_ag_gemm", channel, schedule, &call));
    ops::AgGemmArgs own;
    base::Status read = read_fields("ovl_ag_gemm", {{"args.a_shard", &args->a_shard, &own.a_shard},
                                                    {"args.b", &args->b, &own.b},
                                                    {"args.c", &args->c, &own.c},
                                                    {"args.bias", &args->bias, &own.bias},
                                                    {"args.a", &args->a, &own.a}});
    own.row_offsets = offsets_of(args->row_offsets, call.channel->channel->team().size());
    if (read.ok()) read = check_activation({"ovl_ag_gemm", "args.activation"}, args->activation);
    own.activation = static_cast<spec::Activation>(args->activation);
    return run_or_refuse(call, read, own, "ag_gemm");
  });
}

int ovl_ag_wgrad(ovl_channel* channel, const ovl_ag_wgrad_args* args, ovl_schedule* schedule) {
  return guarded([&]() -> base::Status {
    Call call;
    OVERLACE_TRY(check_struct({"ovl_ag_wgrad", "args"}, args));
    OVERLACE_TRY(enter_call("ovl_ag_wgrad", channel, schedule, &call));
    ops::AgWgradArgs own;
    const base::Status read = read_fields("ovl_ag_wgrad", {{"args.a_shard", &args->a_shard, &own.a_shard},
                                                           {"args.b", &args->b, &own.b},
                                                           {"args.c", &args->c, &own.c},
                                                           {"args.a", &args->a, &own.a}});
    own.row_offsets = offsets_of(args->row_offsets, call.channel->channel->team().size());
    return run_or_refuse(call, read, own, "ag_wgrad");
  });
}

int ovl_gemm_rs(ovl_channel* channel, const ovl_gemm_rs_args* args, ovl_schedule* schedule) {
  return guarded([&]() -> base::Status {
    Call call;
    OVERLACE_TRY(check_struct({"ovl_gemm_rs", "args"}, args));
    OVERLACE_TRY(enter_call("ovl_gemm_rs", channel, schedule, &call));
    ops::GemmRsArgs own;
    const base::Status read = read_fields("ovl_gemm_rs", {{"args.a", &args->a, &own.a},
                                                          {"args.b", &args->b, &own.b},
                                                          {"args.out", &args->out, &own.out},
                                                          {"args.bias", &args->bias, &own.bias}});
    own.row_offsets = offsets_of(args->row_offsets, call.channel->channel->team().size());
    return run_or_refuse(call, read, own, "gemm_rs");
  });
}

int ovl_gemm_ar(ovl_channel* channel, const ovl_gemm_ar_args* args, ovl_schedule* schedule) {
  return guarded([&]() -> base::Status {
    Call call;
    OVERLACE_TRY(check_struct({"ovl_gemm_ar", "args"}, args));
    OVERLACE_TRY(enter_call("ovl_gemm_ar", channel, schedule, &call));
    ops::GemmArArgs own;
    const base::Status read = read_fields("ovl_gemm_ar", {{"args.a", &args->a, &own.a},
                                                          {"args.b", &args->b, &own.b},
                                                          {"args.out", &args->out, &own.out},
                                                          {"args.bias", &args->bias, &own.bias}});
    return run_or_refuse(call, read, own, "gemm_ar");
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
