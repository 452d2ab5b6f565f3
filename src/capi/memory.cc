// Symmetric memory, puts and signals of the C API.
#include <algorithm>
#include <cstring>

#include "overlace/capi_words.h"
#include "overlace/handle_pod.h"
#include "overlace/signal.h"
#include "src/capi/handles.h"
#include "src/runtime/state.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace {

base::Status check_peer(std::string_view call, std::string_view name, const Team& team, int peer) {
  if (peer >= 0 && peer < team.size()) return {};
  return base::invalid_argument("{}: {} is {}, wanted 0 to {}", call, name, peer, team.size() - 1);
}

/// Inside the part of the heap that belongs to users.
base::Status check_heap_range(std::string_view call, Runtime& runtime, uint64_t offset, uint64_t bytes) {
  const runtime::BackendState& backend = *runtime.state().backend;
  const uint64_t begin = backend.user_offset(), end = begin + backend.user_bytes();
  if (offset >= begin && offset <= end && bytes <= end - offset) return {};
  return base::invalid_argument("{}: {} bytes at offset {} of the heap, wanted within {} to {}", call, bytes, offset,
                                begin, end);
}

/// A channel of CPU ranks, for the calls that have a twin in device code.
struct Agent {
  Entry entry;
  std::shared_ptr<ChannelObject> object;
  const ChannelPod& pod() const { return object->channel->pod(); }
  Team& team() const { return object->channel->team(); }
};

base::Status enter_agent(std::string_view call, const ovl_channel* channel, Agent* agent) {
  OVERLACE_TRY(enter({call, "channel"}, channel, &agent->entry, &agent->object));
  if (agent->entry.runtime().backend() != Backend::cpu)
    return base::error(Errc::not_supported,
                       "{}: the backend is cuda_peer, wanted cpu: signals of GPUs belong to kernels and streams", call);
  agent->entry.runtime().check();
  return {};
}

base::Status check_id(std::string_view call, const ChannelObject& object, uint32_t id) {
  for (const SignalIds& range : object.ids)
    if (id >= range.first && id - range.first < range.count) return {};
  std::string given;
  for (const SignalIds& range : object.ids)
    given += base::format("{}{} to {}", given.empty() ? "" : ", ", range.first, range.first + range.count - 1);
  return base::invalid_argument("{}: id is {}, wanted one that ovl_signal_ids gave for this channel: {}", call, id,
                                given.empty() ? "none" : given);
}

base::Status check_delta(std::string_view call, uint32_t delta) {
  if (delta >= 1 && delta < (uint32_t{1} << 31)) return {};
  return base::invalid_argument("{}: delta is {}, wanted 1 to 2147483647", call, delta);
}

base::Status check_source(std::string_view call, const void* src, uint64_t bytes) {
  return bytes == 0 ? base::Status() : check_not_null({call, "src"}, src);
}

base::Status check_handle_bytes(std::string_view call, uint64_t bytes) {
  if (bytes == sizeof(ChannelPod)) return {};
  return base::error(Errc::version_mismatch, "{}: bytes is {}, wanted {} (OVL_API_VERSION {})", call, bytes,
                     sizeof(ChannelPod), OVL_API_VERSION);
}

/// What a wait that returned `code` failed of.
base::Status wait_status(std::string_view call, Runtime& runtime, Errc code) {
  if (code == Errc::ok) return {};
  const base::Status cause = runtime::cause_status(runtime);
  return cause.ok() ? base::error(code, "{}: {}", call, errc_name(code)) : cause;
}

base::Status check_put(std::string_view call, Agent& agent, int peer, uint64_t offset, const void* src,
                       uint64_t bytes) {
  OVERLACE_TRY(check_peer(call, "peer", agent.team(), peer));
  OVERLACE_TRY(check_source(call, src, bytes));
  return check_heap_range(call, agent.entry.runtime(), offset, bytes);
}

}  // namespace

int ovl_heap_alloc(ovl_runtime* runtime, uint64_t bytes, uint64_t align, const char* name, ovl_buffer* buffer) {
  return guarded([&]() -> base::Status {
    Entry entry;
    OVERLACE_TRY(check_not_null({"ovl_heap_alloc", "buffer"}, buffer));
    OVERLACE_TRY(enter({"ovl_heap_alloc", "runtime"}, runtime, &entry));
    const SymBuffer made =
        entry.runtime().heap().alloc(bytes, align == 0 ? size_t{256} : align, name == nullptr ? "" : name);
    *buffer = {made.offset, made.bytes};
    return {};
  });
}

int ovl_heap_free(ovl_runtime* runtime, ovl_buffer buffer) {
  return guarded([&]() -> base::Status {
    Entry entry;
    OVERLACE_TRY(enter({"ovl_heap_free", "runtime"}, runtime, &entry));
    entry.runtime().heap().free({buffer.offset, buffer.bytes});
    return {};
  });
}

int ovl_heap_verify(ovl_runtime* runtime) {
  return guarded([&]() -> base::Status {
    Entry entry;
    OVERLACE_TRY(enter({"ovl_heap_verify", "runtime"}, runtime, &entry));
    entry.runtime().heap().verify();
    return {};
  });
}

int ovl_peer_ptr(ovl_team* team, ovl_buffer buffer, int peer, void** address) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<TeamObject> object;
    OVERLACE_TRY(check_not_null({"ovl_peer_ptr", "address"}, address));
    OVERLACE_TRY(enter({"ovl_peer_ptr", "team"}, team, &entry, &object));
    OVERLACE_TRY(check_peer("ovl_peer_ptr", "peer", object->team, peer));
    if (buffer.bytes != 0) OVERLACE_TRY(check_heap_range("ovl_peer_ptr", entry.runtime(), buffer.offset, buffer.bytes));
    *address = object->team.peer_ptr({buffer.offset, buffer.bytes}, peer);
    return {};
  });
}

int ovl_heap_adopt(ovl_runtime* runtime, const char* name, void* local, uint64_t bytes, void* const* peers,
                   ovl_region** region) {
  return guarded([&]() -> base::Status {
    Entry entry;
    OVERLACE_TRY(check_not_null({"ovl_heap_adopt", "name"}, name));
    OVERLACE_TRY(check_not_null({"ovl_heap_adopt", "peers"}, peers));
    OVERLACE_TRY(check_not_null({"ovl_heap_adopt", "region"}, region));
    OVERLACE_TRY(enter({"ovl_heap_adopt", "runtime"}, runtime, &entry));
    const auto world = static_cast<size_t>(entry.runtime().world().size());
    auto made = std::make_shared<RegionObject>();
    made->region = entry.runtime().heap().adopt(name, local, bytes, std::span(peers, world));
    give_child(entry.shared(), std::move(made), region);
    return {};
  });
}

int ovl_signal_ids(ovl_channel* channel, uint32_t count, const char* name, uint32_t* first) {
  return guarded([&]() -> base::Status {
    Agent agent;
    OVERLACE_TRY(check_not_null({"ovl_signal_ids", "first"}, first));
    OVERLACE_TRY(enter_agent("ovl_signal_ids", channel, &agent));
    if (count == 0) return base::invalid_argument("ovl_signal_ids: count is 0, wanted 1 or more");
    agent.object->ids.reserve(agent.object->ids.size() + 1);
    const SignalIds ids = agent.object->channel->ids(count, Domain::cpu, name == nullptr ? "" : name);
    agent.object->ids.push_back(ids);
    *first = ids.first;
    return {};
  });
}

int ovl_channel_handle(ovl_channel* channel, uint32_t count, void* handle, uint64_t bytes, uint32_t* first) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_channel_handle";
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    OVERLACE_TRY(check_not_null({kCall, "handle"}, handle));
    if (count > 0) OVERLACE_TRY(check_not_null({kCall, "first"}, first));
    OVERLACE_TRY(check_handle_bytes(kCall, bytes));
    OVERLACE_TRY(enter({kCall, "channel"}, channel, &entry, &object));
    if (count > 0) {
      object->ids.reserve(object->ids.size() + 1);
      const Domain domain = entry.runtime().backend() == Backend::cpu ? Domain::cpu : Domain::device;
      object->ids.push_back(object->channel->ids(count, domain, "ovl_channel_handle"));
      *first = object->ids.back().first;
    }
    std::memcpy(handle, &object->channel->pod(), sizeof(ChannelPod));
    return {};
  });
}

int ovl_handle_words(const void* handle, uint64_t bytes, uint32_t first, int64_t* words, uint32_t count) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_handle_words";
    OVERLACE_TRY(check_not_null({kCall, "handle"}, handle));
    OVERLACE_TRY(check_not_null({kCall, "words"}, words));
    OVERLACE_TRY(check_handle_bytes(kCall, bytes));
    ChannelPod pod;
    std::memcpy(&pod, handle, sizeof pod);
    const TeamPod& team = pod.team;
    const auto wanted = static_cast<uint32_t>(OVL_WORD_BASES + team.size);
    if (count != wanted) return base::invalid_argument("{}: count is {}, wanted {}", kCall, count, wanted);
    const auto word = [](const void* address) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(address)); };
    words[OVL_WORD_RANK] = team.rank;
    words[OVL_WORD_SIZE] = team.size;
    words[OVL_WORD_SLOTS] = static_cast<int64_t>(team.sig_off);
    words[OVL_WORD_SLOT_PITCH] = team.sig_pitch;
    words[OVL_WORD_SLOT_STRIDE] = team.sig_stride;
    words[OVL_WORD_NUM_IDS] = team.num_ids;
    words[OVL_WORD_CAPS] = team.caps;
    words[OVL_WORD_TEAM_ID] = team.team_id;
    words[OVL_WORD_SENT] = word(team.sent);
    words[OVL_WORD_TICKETS] = word(team.ticket);
    words[OVL_WORD_ABORT_WORD] = word(team.abort_word);
    words[OVL_WORD_RECORD] = word(team.record);
    words[OVL_WORD_TIMEOUT_NS] = static_cast<int64_t>(team.timeout_ns);
    words[OVL_WORD_CLAIM] = word(team.claim);
    words[OVL_WORD_CHANNEL_ID] = pod.channel_id;
    words[OVL_WORD_BARRIER_ID] = pod.barrier_id;
    words[OVL_WORD_FIRST_ID] = first;
    for (int peer = 0; peer < team.size; ++peer)
      words[OVL_WORD_BASES + peer] = word(team.heap_more == nullptr ? team.heap[peer] : team.heap_more[peer]);
    return {};
  });
}

int ovl_put(ovl_channel* channel, int peer, uint64_t dst_offset, const void* src, uint64_t bytes) {
  return guarded([&]() -> base::Status {
    Agent agent;
    OVERLACE_TRY(enter_agent("ovl_put", channel, &agent));
    OVERLACE_TRY(check_put("ovl_put", agent, peer, dst_offset, src, bytes));
    put(agent.pod(), peer, dst_offset, src, bytes);
    return {};
  });
}

int ovl_put_signal(ovl_channel* channel, int peer, uint64_t dst_offset, const void* src, uint64_t bytes, uint32_t id) {
  return guarded([&]() -> base::Status {
    Agent agent;
    OVERLACE_TRY(enter_agent("ovl_put_signal", channel, &agent));
    OVERLACE_TRY(check_put("ovl_put_signal", agent, peer, dst_offset, src, bytes));
    OVERLACE_TRY(check_id("ovl_put_signal", *agent.object, id));
    put_signal(agent.pod(), peer, dst_offset, src, bytes, id);
    return {};
  });
}

int ovl_region_put(ovl_channel* channel, ovl_region* region, int peer, uint64_t dst_offset, const void* src,
                   uint64_t bytes) {
  return guarded([&]() -> base::Status {
    Agent agent;
    OVERLACE_TRY(enter_agent("ovl_region_put", channel, &agent));
    const base::Result<std::shared_ptr<RegionObject>> found = find<RegionObject>({"ovl_region_put", "region"}, region);
    if (!found.ok()) return found.status();
    if ((*found)->owner != agent.object->owner)
      return base::invalid_argument("ovl_region_put: region belongs to another runtime than channel");
    OVERLACE_TRY(check_peer("ovl_region_put", "peer", agent.team(), peer));
    OVERLACE_TRY(check_source("ovl_region_put", src, bytes));
    put(agent.pod(), (*found)->region.pod(agent.team()), peer, dst_offset, src, bytes);
    return {};
  });
}

int ovl_signal_add(ovl_channel* channel, int peer, uint32_t id, uint32_t delta) {
  return guarded([&]() -> base::Status {
    Agent agent;
    OVERLACE_TRY(enter_agent("ovl_signal_add", channel, &agent));
    OVERLACE_TRY(check_peer("ovl_signal_add", "peer", agent.team(), peer));
    OVERLACE_TRY(check_id("ovl_signal_add", *agent.object, id));
    OVERLACE_TRY(check_delta("ovl_signal_add", delta));
    signal_add(agent.pod(), peer, id, delta);
    return {};
  });
}

int ovl_signal_take(ovl_channel* channel, int sender, uint32_t id, uint32_t delta) {
  return guarded([&]() -> base::Status {
    Agent agent;
    OVERLACE_TRY(enter_agent("ovl_signal_take", channel, &agent));
    OVERLACE_TRY(check_peer("ovl_signal_take", "sender", agent.team(), sender));
    OVERLACE_TRY(check_id("ovl_signal_take", *agent.object, id));
    OVERLACE_TRY(check_delta("ovl_signal_take", delta));
    const Errc code = wait_ge(agent.pod(), sender, id, ticket(agent.pod(), sender, id) + delta);
    OVERLACE_TRY(wait_status("ovl_signal_take", agent.entry.runtime(), code));
    consume(agent.pod(), sender, id, delta);
    return {};
  });
}

int ovl_fence(ovl_channel* channel, int peer) {
  return guarded([&]() -> base::Status {
    Agent agent;
    OVERLACE_TRY(enter_agent("ovl_fence", channel, &agent));
    OVERLACE_TRY(check_peer("ovl_fence", "peer", agent.team(), peer));
    fence(agent.pod(), peer);
    return {};
  });
}

int ovl_flush(ovl_channel* channel) {
  return guarded([&]() -> base::Status {
    Agent agent;
    OVERLACE_TRY(enter_agent("ovl_flush", channel, &agent));
    return wait_status("ovl_flush", agent.entry.runtime(), flush(agent.pod()));
  });
}

int ovl_barrier(ovl_channel* channel) {
  return guarded([&]() -> base::Status {
    Agent agent;
    OVERLACE_TRY(enter_agent("ovl_barrier", channel, &agent));
    return wait_status("ovl_barrier", agent.entry.runtime(), barrier(agent.pod()));
  });
}
