#include "overlace/runtime.h"

#include <unistd.h>

#include <functional>
#include <set>
#include <utility>

#include "overlace/error.h"
#include "src/base/env.h"
#include "src/base/log.h"
#include "src/base/nvtx.h"
#include "src/runtime/channel.h"
#include "src/runtime/hello.h"
#include "src/runtime/lives.h"
#include "src/runtime/phases.h"
#include "src/runtime/state.h"

namespace overlace {
namespace {

using runtime::AbortCause;
using runtime::Control;

constexpr int64_t kMaxTimeoutMs = 86400 * 1000;

void check_range(const char* name, int64_t value, int64_t min, int64_t max) {
  if (value < min || value > max)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("RuntimeOptions::{} is {}, wanted {} to {}", name, value, min, max));
}

/// Validates, and fills in what was left open; `backend` stays automatic.
RuntimeOptions complete(RuntimeOptions options, int world) {
  base::open_nvtx().or_throw();
  if (options.timeout_ms == 0) options.timeout_ms = base::env().timeout_s * 1000;
  check_range("timeout_ms", options.timeout_ms, 1, kMaxTimeoutMs);
  if (options.num_signal_ids != 0) check_range("num_signal_ids", options.num_signal_ids, 64, 1 << 20);
  check_range("heap_bytes", static_cast<int64_t>(options.heap_bytes), 0, int64_t{1} << 46);
  check_range("max_heap_bytes", static_cast<int64_t>(options.max_heap_bytes), 0, int64_t{1} << 46);
  if (options.max_heap_bytes != 0 && options.max_heap_bytes < options.heap_bytes)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("RuntimeOptions::max_heap_bytes is {}, wanted at least heap_bytes, {}",
                                       options.max_heap_bytes, options.heap_bytes));
  check_range("net_max_ctas", options.net_max_ctas, 0, 64);
  check_range("world size", world, 1, 1024);
  if (options.net_engine != "auto" && options.net_engine != "nccl" && options.net_engine != "mpi" &&
      options.net_engine != "none")
    throw InvalidArgument(
        Errc::invalid_argument,
        base::format("RuntimeOptions::net_engine is \"{}\", wanted auto, nccl, mpi or none", options.net_engine));
  return options;
}

/// What `automatic` means: GPUs if every rank has one for itself or is asked to use one, else CPU ranks.
base::Result<Backend> choose_backend(Control& control, const RuntimeOptions& options) {
  Backend mine = options.backend;
  std::string why;
  if (mine == Backend::automatic)
    mine = runtime::cuda_device_count(&why) >= control.size() ? Backend::cuda_peer : Backend::cpu;
  std::vector<int> members(static_cast<size_t>(control.size()));
  for (size_t r = 0; r < members.size(); ++r) members[r] = static_cast<int>(r);
  const std::byte vote{options.backend == Backend::automatic && mine == Backend::cpu};
  base::Result<std::vector<Bytes>> votes =
      control.exchange(members, std::span(&vote, 1), options.timeout_ms, "open, backend");
  if (!votes.ok()) return votes.status();
  if (options.backend != Backend::automatic) return mine;
  for (const Bytes& one : *votes)
    if (!one.empty() && one[0] != std::byte{0}) return Backend::cpu;  // the weakest rank decides
  return mine;
}

base::Status open_state(RuntimeState& state, Bootstrap& bootstrap) {
  RuntimeOptions& options = state.options;
  base::Result<std::unique_ptr<Control>> control = Control::open(bootstrap, options.timeout_ms);
  if (!control.ok()) return control.status();
  state.control = std::move(*control);
  runtime::come_past(runtime::Phase::backend, state.rank);
  base::Result<Backend> backend = choose_backend(*state.control, options);
  if (!backend.ok()) return backend.status();
  options.backend = *backend;
  if (options.num_signal_ids == 0) options.num_signal_ids = runtime::default_signal_ids(*backend);
  runtime::fill_in_heap(*backend, &options);
  runtime::come_past(runtime::Phase::hello, state.rank);
  base::Result<std::vector<runtime::Hello>> hellos = runtime::exchange_hello(*state.control, options, kHeapAbi);
  if (!hellos.ok()) return hellos.status();
  std::set<uint64_t> hosts, machines;
  for (const runtime::Hello& hello : *hellos) hosts.insert(hello.host_id), machines.insert(hello.machine_id);
  state.num_hosts = static_cast<int>(hosts.size());
  state.has_emulated_hosts = !machines.contains(runtime::kUnknownMachine) && machines.size() < hosts.size();
  runtime::come_past(runtime::Phase::heap, state.rank);

  const runtime::OpenContext context{bootstrap, *state.control, state.names, options, *hellos};
  base::Result<std::unique_ptr<runtime::BackendState>> opened =
      *backend == Backend::cpu ? runtime::open_cpu(context) : runtime::open_cuda_peer(context);
  if (opened.ok()) state.backend = std::move(*opened);
  OVERLACE_TRY(runtime::agree_on_status(*state.control, opened.ok() ? base::Status() : opened.status(),
                                        options.timeout_ms, "open, backend"));
  const uint64_t user = state.backend->user_offset();
  state.blocks = runtime::Allocator(user, user + state.backend->user_bytes(), kHeapAlign);
  state.control->listen([&state](const AbortCause& cause) { state.backend->abort(cause); });
  if (*backend != Backend::cpu) {
    state.places = runtime::OperandPlaces(state.backend->device(),
                                          [&state](const void* address) { return state.place_of(address); });
  }
  return {};
}

}  // namespace

RuntimeState::RuntimeState() : heap(*this) {}
RuntimeState::~RuntimeState() {
  if (control) control->listen({});  // the watcher must not find a backend that is being destroyed
}

bool RuntimeState::is_forked() const { return runtime::fork_count() != fork_count; }

base::Result<int> RuntimeState::place_of(const void* address) {
  for (const std::unique_ptr<StripeState>& stripe : stripes) {
    const char* const begin = stripe->memory.data;
    if (!std::less<>()(address, static_cast<const void*>(begin)) &&
        std::less<>()(address, static_cast<const void*>(begin + stripe->bytes)))
      return runtime::kManagedMemory;
  }
  return backend->place_of(address);
}

void RuntimeState::enter() {
  if (is_forked())
    throw InvalidArgument(Errc::forked, base::format("this runtime belongs to process {}; process {} was forked from "
                                                     "it and cannot use it",
                                                     pid, ::getpid()));
  if (is_closed) throw InvalidArgument(Errc::closed, "the runtime was closed; open a new one");
  if (const AbortCause cause = backend->cause(); cause.code != Errc::ok) throw_cause(cause);
}

void RuntimeState::synchronize() {
  enter();
  if (const base::Status status = backend->synchronize(); !status.ok()) fail(status);
  enter();
}

base::Status RuntimeState::take_finding() {
  if (!found.ok()) return std::exchange(found, base::Status());
  for (const auto& [channel, of_channel] : findings) OVERLACE_TRY(of_channel->take());
  return {};
}

void RuntimeState::throw_cause(const AbortCause& cause) {
  has_thrown_cause = true;
  throw_error(cause.code, cause.message);
}

void RuntimeState::abort(const AbortCause& cause) {
  const std::lock_guard lock(abort_mutex);
  if (!can_abort) return;
  backend->abort(cause);
  control->spread(cause);
}

void RuntimeState::fail(const base::Status& status) {
  if (backend->cause().code == Errc::ok) abort({status.code(), status.message()});
  throw_cause(backend->cause());
}

std::vector<Bytes> RuntimeState::exchange(const TeamState& team, std::span<const std::byte> mine,
                                          const std::string& what) {
  base::Result<std::vector<Bytes>> all = control->exchange(team.members, mine, options.timeout_ms, what);
  if (!all.ok()) fail(all.status());
  return std::move(*all);
}

std::vector<runtime::Attendance> RuntimeState::meet(const TeamState& team, uint64_t group, uint32_t number,
                                                    std::span<const std::byte> mine, const std::string& what) {
  enter();
  base::Result<std::vector<runtime::Attendance>> all =
      control->meet(team.members, group, number, mine, options.timeout_ms, what);
  if (!all.ok()) fail(all.status());
  return std::move(*all);
}

void RuntimeState::agree(const base::Status& mine, const std::string& what) {
  const base::Status all = runtime::agree_on_status(*control, mine, options.timeout_ms, what);
  if (all.ok()) return;
  const bool is_lost = all.code() == Errc::timeout || all.code() == Errc::peer_lost || all.code() == Errc::aborted;
  if (is_lost) fail(all);
  all.or_throw();
}

base::Status RuntimeState::check_no_capture(const std::string& call) const {
  for (const std::shared_ptr<TeamState>& team : teams)
    for (const auto& channel : team->channels)
      if (backend->is_capturing(channel->stream()))
        return base::error(Errc::capture, "{}: a stream of team \"{}\" is being captured; wanted before the capture",
                           call, team->name);
  return {};
}

std::shared_ptr<TeamState> RuntimeState::make_team(std::vector<int> members, uint32_t id, uint32_t first_id,
                                                   uint32_t num_ids, const TeamOptions& team_options) {
  auto team = std::make_shared<TeamState>();
  team->runtime = this;
  team->id = id;
  team->name = team_options.name;
  for (size_t i = 0; i < members.size(); ++i)
    if (members[i] == rank) team->rank = static_cast<int>(i);
  team->members = std::move(members);
  team->pod = backend->make_pod(team->members, team->rank, id);
  team->ids = runtime::Allocator(first_id, first_id + num_ids, 1);
  names.set_team(id, team->name, team->members);
  teams.push_back(team);
  if (options.net_engine != "none") {
    Team handle(team);
    team->engine = backend->make_engine(handle, team_options.max_ctas);
  }
  return team;
}

void RuntimeState::close() {
  bool is_aborted = backend->cause().code != Errc::ok;
  if (!is_aborted) {
    base::Status status = backend->synchronize();
    if (status.ok()) {
      control->set_closing();
      status = meet_to_close();
    }
    if (!status.ok()) {
      abort({status.code(), status.message()});
      is_aborted = true;
    }
  }
  release(!is_aborted);
}

/// Engines end with their peers; where one cannot, none does.
base::Status RuntimeState::meet_to_close() {
  bool is_held = false;
  for (const std::shared_ptr<TeamState>& team : teams)
    is_held = is_held || (team->engine && team->engine->has_captures());
  const std::byte mine{is_held};
  const base::Result<std::vector<Bytes>> all =
      control->exchange(teams[0]->members, {&mine, 1}, options.timeout_ms, "close");
  if (!all.ok()) return all.status();
  const bool is_one_held = std::any_of(
      all->begin(), all->end(), [](const Bytes& theirs) { return !theirs.empty() && theirs.front() != std::byte{0}; });
  if (!is_one_held) return {};
  for (const std::shared_ptr<TeamState>& team : teams)
    if (team->engine) team->engine->forget();
  return {};
}

void RuntimeState::release(bool clean) {
  is_closed = true;
  runtime::remove_life(control.get());
  // Before anything is unmapped: peers that wait for us must not wait longer than needed.
  if (!clean && backend->cause().code == Errc::ok) {
    control->leave(false);
    backend->abort({Errc::closed, "the runtime was destroyed without close()"});
  }
  for (const std::shared_ptr<TeamState>& team : teams) {
    for (const auto& channel : team->channels) channel->attachment().reset();
    if (!clean && team->engine) team->engine->abort();
    team->engine.reset();
  }
  findings.clear();  // the channels' executors have waited for their kernels
  {
    const std::lock_guard lock(abort_mutex);
    can_abort = false;
  }
  control->listen({});
  if (!clean && !stripes.empty()) (void)backend->synchronize();  // what runs on to its end may touch them
  stripes.clear();
  backend->close(!clean);
  control->leave(true);
}

Runtime Runtime::open(Bootstrap& bootstrap, const RuntimeOptions& options) {
  auto state = std::make_unique<RuntimeState>();
  state->rank = bootstrap.rank();
  state->world = bootstrap.size();
  state->options = complete(options, state->world);
  state->fork_count = runtime::fork_count();
  state->pid = ::getpid();
  try {
    open_state(*state, bootstrap).or_throw();
  } catch (...) {
    // Those who wait for this rank learn why it does not come.
    const base::Status why = base::status_of_current_exception();
    if (state->control) state->control->spread({why.code(), why.message()});
    throw;
  }

  Runtime runtime(std::move(state));
  RuntimeState& opened = *runtime.state_;
  runtime::come_past(runtime::Phase::team, opened.rank);
  std::vector<int> members(static_cast<size_t>(opened.world));
  for (size_t r = 0; r < members.size(); ++r) members[r] = static_cast<int>(r);
  // Sub-teams take their ids from the upper half, so that the world's are the same on all ranks whatever was split.
  opened.next_team_ids = opened.options.num_signal_ids / 2;
  opened.world_team = Team(opened.make_team(std::move(members), 0, 0, opened.next_team_ids,
                                            {.name = "world", .max_ctas = opened.options.net_max_ctas}));
  runtime::come_past(runtime::Phase::barrier, opened.rank);
  opened.exchange(*opened.teams[0], {}, "open, last barrier");
  runtime::come_past(runtime::Phase::alive, opened.rank);
  opened.control->set_alive();
  runtime::add_life(opened.control.get());
  runtime::come_past(runtime::Phase::open, opened.rank);
  base::log(base::LogLevel::info, "runtime", "open: rank {} of {}, backend {}, heap {} bytes{}", opened.rank,
            opened.world, opened.options.backend == Backend::cpu ? "cpu" : "cuda_peer", opened.options.heap_bytes,
            opened.options.link.enabled ? ", emulated link " + opened.options.link.to_string() : std::string());
  return runtime;
}

Runtime::Runtime(std::unique_ptr<RuntimeState> state) : state_(std::move(state)) { state_->owner = this; }

Runtime::Runtime(Runtime&& other) noexcept : state_(std::move(other.state_)) {
  if (state_) state_->owner = this;
}

Runtime& Runtime::operator=(Runtime&& other) noexcept {
  if (this == &other) return *this;
  Runtime old(std::move(*this));
  state_ = std::move(other.state_);
  if (state_) state_->owner = this;
  return *this;
}

Runtime::~Runtime() {
  if (!state_) return;
  if (state_->is_forked()) {
    // Everything here belongs to the parent: threads that do not exist in this process, memory that peers still use.
    (void)state_.release();
    return;
  }
  if (state_->is_closed) return;
  try {
    state_->release(false);
  } catch (...) {
    return;  // a destructor has nobody to tell
  }
}

Team& Runtime::world() { return state_->world_team; }

SymmetricHeap& Runtime::heap() { return state_->heap; }

Backend Runtime::backend() const { return state_->options.backend; }

int Runtime::device() const { return state_->backend->device(); }

Caps Runtime::caps(int peer) const {
  check_range("caps: peer", peer, 0, state_->world - 1);
  return state_->backend->caps(peer);
}

const RuntimeOptions& Runtime::options() const { return state_->options; }

Stats Runtime::stats() const { return state_->stats; }

bool Runtime::is_emulated() const { return state_->options.link.enabled || state_->has_emulated_hosts; }

void Runtime::check() {
  state_->enter();
  state_->take_finding().or_throw();
}

void Runtime::synchronize() {
  state_->synchronize();
  state_->take_finding().or_throw();
}

void Runtime::check_quiescent() {
  state_->enter();
  state_->backend->check_quiescent().or_throw();
}

void Runtime::abort(Errc code, std::string_view why) {
  if (state_->is_forked()) return;
  state_->abort({code == Errc::ok ? Errc::aborted : code, std::string(why)});
}

void Runtime::close() {
  if (state_->is_forked()) state_->enter();
  if (state_->is_closed) return;
  state_->close();
  const AbortCause cause = state_->backend->cause();
  if (cause.code != Errc::ok && !state_->has_thrown_cause) state_->throw_cause(cause);
}

namespace runtime {

base::Status cause_status(Runtime& runtime) {
  const AbortCause cause = runtime.state().backend->cause();
  return cause.code == Errc::ok ? base::Status() : base::Status(cause.code, cause.message);
}

}  // namespace runtime
}  // namespace overlace
