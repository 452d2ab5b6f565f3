// Backend `cpu`: ranks are threads or processes that share memory.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include "overlace/error.h"
#include "src/runtime/backend.h"
#include "src/runtime/backend/cpu/agent.h"
#include "src/runtime/backend/cpu/futex.h"
#include "src/runtime/backend/cpu/mapping.h"
#include "src/runtime/backend/cpu/net.h"
#include "src/runtime/backend/cpu/observer.h"
#include "src/runtime/backend/cpu/wire.h"
#include "src/runtime/engine/mpi/engine.h"
#include "src/runtime/engine/reference.h"
#include "src/runtime/lives.h"
#include "src/runtime/state.h"
#include "src/runtime/wait.h"

namespace overlace::runtime {
namespace {

constexpr uint64_t kGranule = 4096;
constexpr uint64_t kStagingPerRank = 1 << 20;  // collectives of the world and as much again for sub-teams
constexpr int kPoisonByte = 0xff;              // a NaN in every floating type

struct Line {
  alignas(64) unsigned char bytes[64] = {};
};

class CpuBackend final : public BackendState {
 public:
  /// `service`: null where no rank is on another host and engine mpi was not asked for.
  CpuBackend(const OpenContext& context, const RuntimeLayout& layout, Heaps heaps, int cores, mpi::Service* service,
             const std::vector<int>& mpi_ranks)
      : heaps_(std::move(heaps)), staging_(layout.staging.offset), timeout_ms_(context.options.timeout_ms) {
    const RuntimeOptions& options = context.options;
    agent_.rank = context.control.rank();
    agent_.world = context.control.size();
    agent_.cores = cores;
    agent_.wait = options.wait;
    agent_.timeout_ns = static_cast<uint64_t>(options.timeout_ms) * 1000000u;
    agent_.fork_count = fork_count();
    agent_.layout = layout;
    agent_.heap_bytes = layout.total_bytes;
    heaps_.usable = &agent_.heap_bytes;
    for (int r = 0; r < agent_.world; ++r) agent_.bases.push_back(heaps_.mapping->base(r));
    agent_.control = &context.control;
    agent_.names = &context.names;
    agent_.sent.resize(size_t{layout.num_ids} * layout.slot_stride);
    agent_.tickets.resize(agent_.sent.size());
    is_poisoning_ = options.adversary.enabled;
#ifndef NDEBUG
    is_poisoning_ = true;
#endif
    ControlBlock& block = control_block(own());
    block = ControlBlock{};
    block.layout_hash = layout.hash();
    block.generation = context.control.generation();
    block.pid = ::getpid();
    block.rank = agent_.rank;
    for (const Hello& hello : context.hellos) {
      const auto first = std::find_if(context.hellos.begin(), context.hellos.end(),
                                      [&](const Hello& other) { return other.host_id == hello.host_id; });
      agent_.first_of_host.push_back(static_cast<int>(first - context.hellos.begin()));
    }
    // Collectives pass the emulated link like everything else, unless engine mpi was asked for by name.
    takes_mpi_ =
        service != nullptr && (options.net_engine == "mpi" || !(options.link.enabled || options.adversary.enabled));
    if (service != nullptr) agent_.net = std::make_unique<Net>(agent_, *service, mpi_ranks, heaps_.near);
    if (options.adversary.enabled || options.link.enabled)
      agent_.wire = std::make_unique<Wire>(agent_, options.adversary, options.link);
  }
  ~CpuBackend() override {
    agent_.wire.reset();
    agent_.net.reset();
  }

  Backend kind() const override { return Backend::cpu; }
  Caps caps(int world_rank) const override {
    const bool is_near = !is_far(world_rank);
    return {.load_store = is_near,
            .device_initiated = is_near,
            .multi_writer_signals = true,
            .remote_add = is_near,
            .collectives = true};
  }
  Reach reach(int world_rank) const override {
    return world_rank == agent_.rank ? Reach::self : is_far(world_rank) ? Reach::net : Reach::lsa;
  }
  char* heap_base(int world_rank) const override {
    return is_far(world_rank) ? nullptr : agent_.bases[static_cast<size_t>(world_rank)];
  }
  CallBoard* call_board(int world_rank) override {
    return is_far(world_rank) ? nullptr : &cpu_control(heap_base(world_rank)).calls;
  }
  uint64_t user_offset() const override { return agent_.layout.user.offset; }
  uint64_t user_bytes() const override { return heaps_.bytes - agent_.layout.user.offset; }
  base::Status grow_heap(uint64_t bytes) override {
    const uint64_t end = align_up(agent_.layout.user.offset + bytes, kGranule);
    return grow_heaps(*agent_.control, timeout_ms_, end, &heaps_);
  }

  TeamPod make_pod(const std::vector<int>& members, int rank, uint32_t team_id) override {
    TeamPod pod{};
    pod.rank = rank;
    pod.size = static_cast<int32_t>(members.size());
    std::vector<char*>& table = tables_.emplace_back();
    for (const int member : members) table.push_back(heap_base(member));
    for (size_t r = 0; r < std::min<size_t>(table.size(), kPodPeers); ++r) pod.heap[r] = table[r];
    pod.heap_more = table.size() > kPodPeers ? table.data() : nullptr;
    pod.sig_off = agent_.layout.slots.offset;
    pod.sig_pitch = agent_.layout.slot_pitch;
    pod.sig_stride = agent_.layout.slot_stride;
    pod.num_ids = agent_.layout.num_ids;
    pod.team_id = team_id;
    pod.sent = agent_.sent.data();
    pod.ticket = agent_.tickets.data();
    pod.abort_word = &agent_.abort_word();
    pod.record = &agent_.record;
    pod.timeout_ns = agent_.timeout_ns;
    pod.agent = &agent_;
    return pod;
  }

  std::unique_ptr<NetEngine> make_engine(Team& team, int) override {
    if (takes_mpi_) return mpi::make_engine(team, agent_.net->service(), agent_.net->ranks());
    const uint64_t end = agent_.layout.staging.offset + agent_.layout.staging.bytes;
    return make_reference_engine(team, staging_, end);
  }

  base::Result<void*> allocate_local(size_t bytes, StreamRef) override {
    auto memory = std::make_unique<Line[]>(align_up(bytes, sizeof(Line)) / sizeof(Line));
    void* const address = memory.get();
    local_.emplace(address, std::move(memory));
    return address;
  }
  void free_local(void* memory) override { local_.erase(memory); }
  base::Status zero_local(void* memory, size_t bytes, StreamRef) override {
    for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i)
      std::atomic_ref(static_cast<uint64_t*>(memory)[i]).store(0, std::memory_order_relaxed);
    return {};
  }

  base::Result<char* const*> make_table(std::span<char* const> bases) override {
    return tables_.emplace_back(bases.begin(), bases.end()).data();
  }
  base::Status copy(void* dst, const void* src, size_t bytes) override {
    std::memcpy(dst, src, bytes);
    return {};
  }
  uint64_t stripe_granule(std::string* why) const override {
    for (int r = 0; r < agent_.world; ++r) {
      if (!is_far(r)) continue;
      *why = base::format("rank {} is on another host", r);
      return 0;
    }
    return kGranule;
  }
  base::Result<StripeMemory> stripe(const StripePlan& plan) override { return map_stripes(*agent_.control, plan); }
  // Calls run on the calling thread: nothing is queued.
  int sm_room() const override { return 0; }
  base::Status begin_call(const CallSite&, Stats&) override { return {}; }
  base::Status end_call(const CallSite&, std::optional<bool>) override { return {}; }
  bool is_capturing(StreamRef) const override { return false; }
  base::Status finish_calls(uint32_t) override { return {}; }
  base::Status drain(StreamRef) override { return {}; }

  base::Status synchronize() override {
    ChannelPod channel{};
    channel.team = make_world_pod();
    Errc code = Errc::ok;
    if (agent_.wire) code = poll_until(channel, {.kind = WaitKind::stream}, [&] { return agent_.wire->is_idle(); });
    if (code == Errc::ok) code = wait_for_net(channel);
    if (code == Errc::ok) return {};
    const AbortCause first = cause();
    return {first.code, first.message};
  }

  base::Status check_quiescent() override {
    for (uint32_t id = 0; id < agent_.layout.num_ids; ++id)
      for (uint32_t sender = 0; sender < agent_.layout.slot_stride; ++sender) {
        auto* slot = reinterpret_cast<uint64_t*>(own() + agent_.layout.slot_offset(id, sender));
        const uint64_t seen = std::atomic_ref(*slot).load(std::memory_order_acquire);
        const uint64_t ticket = agent_.tickets[size_t{id} * agent_.layout.slot_stride + sender];
        if (seen != ticket)
          return base::error(Errc::internal,
                             "rank {} is not quiescent: signal {} ({}) of sender {} was added {} times, {} consumed",
                             agent_.rank, id, agent_.names->id(id), sender, seen, ticket);
      }
    return {};
  }

  void poison(uint64_t offset, uint64_t bytes) override {
    if (is_poisoning_) std::memset(own() + offset, kPoisonByte, bytes);
  }
  void abort(const AbortCause& cause) override {
    std::atomic_ref(control_block(own()).state)
        .store(static_cast<uint32_t>(RankState::aborted), std::memory_order_relaxed);
    agent_.abort(cause);
  }
  AbortCause cause() override { return agent_.cause(); }
  void close(bool is_aborted) override {
    if (agent_.wire) agent_.wire->drop_all();
    if (is_aborted && agent_.net) agent_.net->service().give_up();
    agent_.wire.reset();
    agent_.net.reset();  // from here on nobody writes into this heap
  }
  CpuAgent& agent() { return agent_; }

 private:
  bool is_far(int world_rank) const { return agent_.net && agent_.net->carries(world_rank); }
  char* own() { return heap_base(agent_.rank); }
  TeamPod make_world_pod() {
    TeamPod pod{};
    pod.rank = 0;
    pod.size = 1;
    pod.heap[0] = own();
    pod.abort_word = &agent_.abort_word();
    pod.agent = &agent_;
    return pod;
  }

  Heaps heaps_;
  CpuAgent agent_;
  std::deque<std::vector<char*>> tables_;  // addresses stay
  std::map<void*, std::unique_ptr<Line[]>> local_;
  uint64_t staging_;  // first byte that no engine has
  int64_t timeout_ms_;
  bool is_poisoning_ = false, takes_mpi_ = false;
};

/// MPI where ranks are on several hosts or it was asked for, else null.
base::Result<mpi::Service*> open_service(const OpenContext& context, std::vector<int>* mpi_ranks) {
  const std::string& engine = context.options.net_engine;
  const auto far = std::find_if(context.hellos.begin(), context.hellos.end(),
                                [&](const Hello& hello) { return hello.host_id != context.hellos[0].host_id; });
  const bool has_hosts = far != context.hellos.end();
  if (!has_hosts && engine != "mpi") return static_cast<mpi::Service*>(nullptr);
  if (has_hosts && engine != "auto" && engine != "mpi")
    return base::error(Errc::not_supported,
                       "ranks 0 and {} are on different hosts and the network engine is {}, wanted auto or mpi",
                       far->rank, engine);
  if (context.control.in_process())
    return base::error(Errc::not_supported, "engine mpi: ranks are threads of one process, wanted processes");
  const int64_t timeout_ms = context.options.timeout_ms;
  base::Result<mpi::Service*> service = mpi::Service::open(timeout_ms);
  OVERLACE_TRY(agree_on_status(context.control, service.status(), timeout_ms, "open, engine mpi"));
  base::Result<std::vector<int>> ranks = mpi::exchange_ranks(**service, context.control, timeout_ms);
  if (!ranks.ok()) return ranks.status();
  *mpi_ranks = std::move(*ranks);
  return service;
}

}  // namespace

base::Result<std::unique_ptr<BackendState>> open_cpu(const OpenContext& context) {
  Control& control = context.control;
  std::vector<int> mpi_ranks;
  base::Result<mpi::Service*> service = open_service(context, &mpi_ranks);
  OVERLACE_TRY(service.status());
  const auto world = static_cast<uint32_t>(control.size());
  const RuntimeLayout layout = runtime_layout(world, context.options.num_signal_ids, kSlotPitchCpu,
                                              context.options.heap_bytes, kGranule, world * kStagingPerRank);
  const uint64_t limit = align_up(layout.user.offset + context.options.max_heap_bytes, kGranule);
  base::Result<Heaps> heaps = map_heaps(context, layout.total_bytes, limit);
  OVERLACE_TRY(heaps.status());
  // Ranks may be pinned each to its own cores: what counts is what all of them have together.
  base::Result<std::vector<Bytes>> cpus =
      control.exchange(ranks_of_host(context), own_cpus(), context.options.timeout_ms, "open, affinity");
  if (!cpus.ok()) return cpus.status();
  return std::unique_ptr<BackendState>(
      std::make_unique<CpuBackend>(context, layout, std::move(*heaps), usable_cores(*cpus), *service, mpi_ranks));
}

CpuAgent* cpu_agent(Runtime& runtime) {
  auto* backend = dynamic_cast<CpuBackend*>(runtime.state().backend.get());
  return backend == nullptr ? nullptr : &backend->agent();
}

void set_transfer_sink(Runtime& runtime, TransferSink sink) {
  CpuAgent* agent = cpu_agent(runtime);
  if (agent != nullptr && agent->wire) agent->wire->set_sink(std::move(sink));
}

}  // namespace overlace::runtime
