// Runtimes, teams and channels of the C API.
#include <algorithm>
#include <cstring>

#include "src/capi/handles.h"
#include "src/runtime/interrupt.h"
#include "src/runtime/state.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace {

/// The bootstrap goes at once where the opening fails, so that the others learn of it.
base::Status open_runtime(std::unique_ptr<Bootstrap> bootstrap, const RuntimeOptions& options,
                          const ContextOptions& context, ovl_runtime** out) {
  auto object = std::make_shared<RuntimeObject>();
  object->bootstrap = std::move(bootstrap);
  object->runtime.emplace(Runtime::open(*object->bootstrap, options));
  object->context.emplace(Context::open(*object->runtime, context));
  give(std::move(object), out);
  return {};
}

/// Entries of any length by two gathers of equal ones: the lengths, then all padded to the longest.
std::vector<Bytes> gather_any(const ovl_given& given, std::span<const std::byte> mine) {
  const auto gather = [&](const void* data, size_t bytes, void* all) {
    if (const int rc = given.allgather(given.user, data, bytes, all); rc != 0)
      throw PeerLost(Errc::bootstrap, base::format("bootstrap: the caller's allgather returned {}", rc));
  };
  const size_t size = static_cast<size_t>(given.size);
  const uint64_t length = mine.size();
  std::vector<uint64_t> lengths(size);
  gather(&length, sizeof length, lengths.data());
  const size_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<Bytes> all(size);
  if (longest == 0) return all;
  Bytes padded(longest), gathered(longest * size);
  std::copy(mine.begin(), mine.end(), padded.begin());
  gather(padded.data(), longest, gathered.data());
  for (size_t r = 0; r < size; ++r) {
    const auto begin = gathered.begin() + static_cast<ptrdiff_t>(r * longest);
    all[r].assign(begin, begin + static_cast<ptrdiff_t>(lengths[r]));
  }
  return all;
}

StreamRef stream_ref(const Runtime& runtime, void* stream) {
  return runtime.backend() == Backend::cpu ? StreamRef::cpu() : StreamRef::cuda(stream);
}

base::Status check_stream(std::string_view call, const Runtime& runtime, const void* stream) {
  if (runtime.backend() != Backend::cpu || stream == nullptr) return {};
  return base::invalid_argument("{}: stream is set, wanted null: CPU ranks run on the calling thread", call);
}

/// Behind options_of(), which has looked at `given`.
ContextOptions context_options_of(const ovl_options* given) {
  ContextOptions out;
  if (given != nullptr && given->machine != nullptr) out.machine = given->machine;
  return out;
}

void give_team(const Entry& entry, const Team& team, ovl_team** out) {
  auto object = std::make_shared<TeamObject>();
  object->team = team;
  give_child(entry.shared(), std::move(object), out);
}

}  // namespace

namespace overlace::capi {

base::Result<RuntimeOptions> options_of(std::string_view call, const ovl_options* given) {
  RuntimeOptions options = RuntimeOptions::from_environment();
  if (given == nullptr) return options;
  OVERLACE_TRY(check_struct({call, "options"}, given));
  if (given->backend < OVL_BACKEND_AUTO || given->backend > OVL_BACKEND_CUDA_PEER)
    return base::invalid_argument("{}: options.backend is {}, wanted 0 (auto), 1 (cpu) or 2 (cuda_peer)", call,
                                  given->backend);
  if (given->backend != OVL_BACKEND_AUTO) options.backend = static_cast<Backend>(given->backend);
  if (given->has_device != 0) {
    if (given->device < 0)
      return base::invalid_argument("{}: options.device is {}, wanted 0 or more", call, given->device);
    options.device = given->device;
  }
  if (given->num_signal_ids != 0) options.num_signal_ids = given->num_signal_ids;
  if (given->heap_bytes != 0) {
    options.heap_bytes = given->heap_bytes;
    options.max_heap_bytes = 0;  // of the environment: for its own size
  }
  if (given->max_heap_bytes != 0) options.max_heap_bytes = given->max_heap_bytes;
  if (given->timeout_ms != 0) options.timeout_ms = given->timeout_ms;
  if (given->link != nullptr) options.link = LinkOptions::parse(given->link);
  if (given->adversary != nullptr) options.adversary = AdversaryOptions::parse(given->adversary);
  if (given->checks != nullptr) options.checks = CheckOptions::parse(given->checks);
  if (given->net_engine != nullptr) options.net_engine = given->net_engine;
  return options;
}

base::Result<std::unique_ptr<Bootstrap>> bootstrap_of(std::string_view call, const ovl_given* given) {
  OVERLACE_TRY(check_struct({call, "given"}, given));
  OVERLACE_TRY(check_not_null({call, "given.token"}, given->token));
  OVERLACE_TRY(check_not_null({call, "given.allgather"}, reinterpret_cast<const void*>(given->allgather)));
  const ovl_given copy = *given;
  auto gather = [copy](std::span<const std::byte> mine) { return gather_any(copy, mine); };
  return callback_bootstrap(given->rank, given->size, given->token, std::move(gather));
}

}  // namespace overlace::capi

int ovl_world_create(int ranks, ovl_world** world) {
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_world_create", "world"}, world));
    if (ranks < 1 || ranks > 1024)
      return base::invalid_argument("ovl_world_create: ranks is {}, wanted 1 to 1024", ranks);
    auto object = std::make_shared<WorldObject>();
    object->bootstraps = thread_bootstraps(ranks);
    give(std::move(object), world);
    return {};
  });
}

int ovl_world_free(ovl_world* world) {
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(find<WorldObject>({"ovl_world_free", "world"}, world).status());
    Registry::instance().remove(number_of(world));
    return {};
  });
}

int ovl_runtime_open(const ovl_options* options, ovl_runtime** runtime) {
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_runtime_open", "runtime"}, runtime));
    const base::Result<RuntimeOptions> wanted = options_of("ovl_runtime_open", options);
    return wanted.ok() ? open_runtime(environment_bootstrap(), *wanted, context_options_of(options), runtime)
                       : wanted.status();
  });
}

int ovl_runtime_open_thread(ovl_world* world, int rank, const ovl_options* options, ovl_runtime** runtime) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_runtime_open_thread";
    OVERLACE_TRY(check_not_null({kCall, "runtime"}, runtime));
    const base::Result<std::shared_ptr<WorldObject>> found = find<WorldObject>({kCall, "world"}, world);
    if (!found.ok()) return found.status();
    std::unique_ptr<Bootstrap> bootstrap;
    {
      const std::lock_guard lock((*found)->mutex);
      std::vector<std::unique_ptr<Bootstrap>>& all = (*found)->bootstraps;
      if (rank < 0 || static_cast<size_t>(rank) >= all.size())
        return base::invalid_argument("{}: rank is {}, wanted 0 to {}", kCall, rank, all.size() - 1);
      if (!all[static_cast<size_t>(rank)])
        return base::invalid_argument("{}: rank {} of this world was opened before, wanted each once", kCall, rank);
      bootstrap = std::move(all[static_cast<size_t>(rank)]);
    }
    const base::Result<RuntimeOptions> wanted = options_of(kCall, options);
    return wanted.ok() ? open_runtime(std::move(bootstrap), *wanted, context_options_of(options), runtime)
                       : wanted.status();
  });
}

int ovl_runtime_open_given(const ovl_given* given, const ovl_options* options, ovl_runtime** runtime) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_runtime_open_given";
    OVERLACE_TRY(check_not_null({kCall, "runtime"}, runtime));
    base::Result<std::unique_ptr<Bootstrap>> bootstrap = bootstrap_of(kCall, given);
    if (!bootstrap.ok()) return bootstrap.status();
    const base::Result<RuntimeOptions> wanted = options_of(kCall, options);
    return wanted.ok() ? open_runtime(std::move(*bootstrap), *wanted, context_options_of(options), runtime)
                       : wanted.status();
  });
}

int ovl_runtime_close(ovl_runtime* runtime) {
  return guarded([&]() -> base::Status {
    Entry entry;
    OVERLACE_TRY(enter({"ovl_runtime_close", "runtime"}, runtime, &entry));
    RuntimeObject& object = entry.object();
    Registry& registry = Registry::instance();
    for (const uint64_t child : object.children) registry.remove(child);
    base::Status status;
    try {
      object.runtime->close();
    } catch (...) {
      status = base::status_of_current_exception();
    }
    registry.remove(number_of(runtime));  // not before: an abort by another thread has to end what close waits for
    const std::lock_guard ending(object.ending);
    object.runtime.reset();
    object.bootstrap.reset();
    return status;
  });
}

int ovl_runtime_check(ovl_runtime* runtime) {
  return guarded([&]() -> base::Status {
    Entry entry;
    OVERLACE_TRY(enter({"ovl_runtime_check", "runtime"}, runtime, &entry));
    entry.runtime().check();
    return {};
  });
}

int ovl_runtime_synchronize(ovl_runtime* runtime) {
  return guarded([&]() -> base::Status {
    Entry entry;
    OVERLACE_TRY(enter({"ovl_runtime_synchronize", "runtime"}, runtime, &entry));
    entry.runtime().synchronize();
    return {};
  });
}

int ovl_runtime_abort(ovl_runtime* runtime, const char* why) {
  return guarded([&]() -> base::Status {
    const base::Result<std::shared_ptr<RuntimeObject>> found =
        find<RuntimeObject>({"ovl_runtime_abort", "runtime"}, runtime);
    if (!found.ok()) return found.status();
    // Its own thread may be waiting inside: that is what abort is for.
    const std::lock_guard ending((*found)->ending);
    if ((*found)->runtime) (*found)->runtime->abort(Errc::aborted, why == nullptr ? "ovl_runtime_abort" : why);
    return {};
  });
}

int ovl_set_interrupt_check(int (*check)(void)) {
  runtime::set_interrupt_check(check);
  return OVL_OK;
}

int ovl_runtime_info(ovl_runtime* runtime, ovl_info* info) {
  return guarded([&]() -> base::Status {
    Entry entry;
    OVERLACE_TRY(check_struct({"ovl_runtime_info", "info"}, info));
    OVERLACE_TRY(enter({"ovl_runtime_info", "runtime"}, runtime, &entry));
    Runtime& opened = entry.runtime();
    const Stats stats = opened.stats();
    info->rank = opened.world().rank();
    info->size = opened.world().size();
    info->backend = static_cast<int32_t>(opened.backend());
    info->device = opened.device();
    info->is_emulated = opened.is_emulated() ? 1 : 0;
    info->heap_bytes = opened.heap().capacity();
    info->heap_in_use = opened.heap().in_use();
    info->max_heap_bytes = opened.options().max_heap_bytes;
    info->calls = stats.calls;
    info->serialised_calls = stats.serialised_calls;
    info->moved_calls = stats.moved_calls;
    info->preparations = stats.preparations;
    info->evictions = stats.evictions;
    info->heap_growths = stats.heap_growths;
    info->smaller_plans = stats.smaller_plans;
    info->shared_blocks = stats.shared_blocks;
    return {};
  });
}

int ovl_runtime_machine(ovl_runtime* runtime, const char** origin) {
  return guarded([&]() -> base::Status {
    Entry entry;
    OVERLACE_TRY(check_not_null({"ovl_runtime_machine", "origin"}, origin));
    OVERLACE_TRY(enter({"ovl_runtime_machine", "runtime"}, runtime, &entry));
    *origin = entry.shared()->context->machine_origin().c_str();
    return {};
  });
}

int ovl_runtime_world(ovl_runtime* runtime, ovl_team** team) {
  return guarded([&]() -> base::Status {
    Entry entry;
    OVERLACE_TRY(check_not_null({"ovl_runtime_world", "team"}, team));
    OVERLACE_TRY(enter({"ovl_runtime_world", "runtime"}, runtime, &entry));
    give_team(entry, entry.runtime().world(), team);
    return {};
  });
}

int ovl_team_sub(ovl_team* team, const int* ranks, int count, const char* name, ovl_team** sub) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<TeamObject> object;
    OVERLACE_TRY(check_not_null({"ovl_team_sub", "sub"}, sub));
    OVERLACE_TRY(check_not_null({"ovl_team_sub", "ranks"}, ranks));
    OVERLACE_TRY(enter({"ovl_team_sub", "team"}, team, &entry, &object));
    if (count < 1 || count > object->team.size())
      return base::invalid_argument("ovl_team_sub: count is {}, wanted 1 to {}", count, object->team.size());
    TeamOptions options;
    if (name != nullptr) options.name = name;
    const Team made = object->team.sub(std::span(ranks, static_cast<size_t>(count)), options);
    if (made) {
      give_team(entry, made, sub);
    } else {
      *sub = nullptr;
    }
    return {};
  });
}

int ovl_team_rank(ovl_team* team, int* rank) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<TeamObject> object;
    OVERLACE_TRY(check_not_null({"ovl_team_rank", "rank"}, rank));
    OVERLACE_TRY(enter({"ovl_team_rank", "team"}, team, &entry, &object));
    *rank = object->team.rank();
    return {};
  });
}

int ovl_team_size(ovl_team* team, int* size) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<TeamObject> object;
    OVERLACE_TRY(check_not_null({"ovl_team_size", "size"}, size));
    OVERLACE_TRY(enter({"ovl_team_size", "team"}, team, &entry, &object));
    *size = object->team.size();
    return {};
  });
}

int ovl_team_barrier(ovl_team* team) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<TeamObject> object;
    OVERLACE_TRY(enter({"ovl_team_barrier", "team"}, team, &entry, &object));
    object->team.barrier();
    return {};
  });
}

int ovl_team_exchange(ovl_team* team, const void* mine, size_t bytes, void* all) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<TeamObject> object;
    OVERLACE_TRY(check_not_null({"ovl_team_exchange", "mine"}, mine));
    OVERLACE_TRY(check_not_null({"ovl_team_exchange", "all"}, all));
    OVERLACE_TRY(enter({"ovl_team_exchange", "team"}, team, &entry, &object));
    const std::vector<Bytes> got = object->team.exchange(std::span(static_cast<const std::byte*>(mine), bytes));
    for (size_t r = 0; r < got.size(); ++r)
      if (got[r].size() != bytes)
        return base::error(Errc::plan_mismatch, "ovl_team_exchange: rank {} gave {} bytes, this rank {}", r,
                           got[r].size(), bytes);
    for (size_t r = 0; r < got.size(); ++r)
      if (bytes != 0) std::memcpy(static_cast<char*>(all) + r * bytes, got[r].data(), bytes);
    return {};
  });
}

int ovl_channel_open(ovl_team* team, void* stream, int sm_budget, ovl_channel** channel) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<TeamObject> object;
    OVERLACE_TRY(check_not_null({"ovl_channel_open", "channel"}, channel));
    OVERLACE_TRY(enter({"ovl_channel_open", "team"}, team, &entry, &object));
    OVERLACE_TRY(check_stream("ovl_channel_open", entry.runtime(), stream));
    auto made = std::make_shared<ChannelObject>();
    made->channel = &object->team.channel(stream_ref(entry.runtime(), stream), {.sm_budget = sm_budget});
    give_child(entry.shared(), std::move(made), channel);
    return {};
  });
}

int ovl_channel_limit_sms(ovl_channel* channel, int sms, int* before) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    OVERLACE_TRY(enter({"ovl_channel_limit_sms", "channel"}, channel, &entry, &object));
    const int was = object->channel->limit_sms(sms);
    if (before != nullptr) *before = was;
    return {};
  });
}

int ovl_channel_use(ovl_channel* channel, void* stream) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    OVERLACE_TRY(enter({"ovl_channel_use", "channel"}, channel, &entry, &object));
    OVERLACE_TRY(check_stream("ovl_channel_use", entry.runtime(), stream));
    object->channel->use(stream_ref(entry.runtime(), stream));
    return {};
  });
}
