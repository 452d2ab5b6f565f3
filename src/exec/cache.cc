#include "src/exec/cache.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <span>
#include <utility>

#include "overlace/runtime.h"
#include "src/runtime/channel.h"
#include "src/runtime/hash.h"
#include "src/runtime/state.h"
#include "src/spec/digest.h"

namespace overlace::exec {
namespace {

/// Programs kept per channel besides those that captured graphs hold: more than the least while their own workspaces
/// take no more than so many bytes.
constexpr size_t kMaxPrograms = 2048, kLeastPrograms = 256, kMaxWorkspaces = size_t{256} << 20;
/// Agreements kept per channel. Each takes some kilobytes, even where it needs neither heap nor words.
constexpr size_t kMaxShared = 2048;
/// Memory that was not used for so many calls of this rank is given up before the heap grows.
constexpr uint64_t kIdleCalls = 1024;
/// One of so many parts of what may be given up goes at once.
constexpr size_t kPart = 8;
constexpr std::string_view kUnknownCall = "a call that this rank has not made";

std::string param_text(const spec::Params& params, std::string_view name) {
  const auto it = params.find(name);
  if (it == params.end() || !std::holds_alternative<int64_t>(it->second)) return "-";
  return std::to_string(std::get<int64_t>(it->second));
}

std::string key_of(const spec::Schedule& schedule, std::string_view agreement, const std::string& digest) {
  return base::format("{}; {} q {}, digest {}", agreement, schedule.family, param_text(schedule.params, "q"), digest);
}

size_t hash_of(std::string_view agreement) { return std::hash<std::string_view>()(agreement); }

std::string name_of(const Program& program) { return program.schedule.op + "." + program.schedule.family; }

/// What one rank says of its shared parts when room is needed, in their order: how many graphs hold each, and the stamp
/// of its last use; in front the stamp of now, and whether it is the heap that is full.
struct Room {
  uint64_t now = 0, lacks_heap = 0;
  std::vector<uint64_t> holds, last_use;
};

std::string to_text(const Room& room) {
  std::string text = base::format("{} {}", room.now, room.lacks_heap);
  for (size_t i = 0; i < room.holds.size(); ++i) text += base::format(" {} {}", room.holds[i], room.last_use[i]);
  return text;
}

/// Those that nobody holds, the least recently used first.
std::vector<size_t> least_recently_used(const std::vector<uint64_t>& holds, const std::vector<uint64_t>& last_use) {
  std::vector<size_t> out;
  for (size_t i = 0; i < holds.size(); ++i)
    if (holds[i] == 0) out.push_back(i);
  std::stable_sort(out.begin(), out.end(), [&](size_t i, size_t j) { return last_use[i] < last_use[j]; });
  return out;
}

/// Up to the first that is none.
std::vector<uint64_t> read_numbers(const std::string& text) {
  std::vector<uint64_t> numbers;
  const char* next = text.data();
  for (const char* const end = next + text.size(); next < end; ++next) {
    uint64_t value = 0;
    const auto [stop, error] = std::from_chars(next, end, value);
    if (error != std::errc()) break;
    numbers.push_back(value);
    next = stop;
  }
  return numbers;
}

Room read_room(const std::string& text) {
  const std::vector<uint64_t> numbers = read_numbers(text);
  Room room;
  if (numbers.size() < 2) return room;
  room.now = numbers[0], room.lacks_heap = numbers[1];
  for (size_t i = 2; i + 1 < numbers.size(); i += 2) {
    room.holds.push_back(numbers[i]);
    room.last_use.push_back(numbers[i + 1]);
  }
  return room;
}

}  // namespace

std::string agreement_key(const spec::Schedule& schedule, std::string_view agreement, std::string_view local_param) {
  return key_of(schedule, agreement, spec::fingerprint(schedule, local_param));
}

base::Result<Cache*> Cache::of(Channel& channel) {
  std::shared_ptr<void>& slot = channel.attachment();
  if (slot == nullptr) {
    auto cache = std::shared_ptr<Cache>(new Cache(channel));
    OVERLACE_TRY(cache->open());
    slot = cache;
  }
  return static_cast<Cache*>(slot.get());
}

Cache* Cache::traced(Channel& channel) {
  Cache* const cache = known(channel);
  return cache == nullptr || cache->trace == nullptr ? nullptr : cache;
}

Cache::~Cache() {
  if (executor_ != nullptr) executor_->finish();
  for (const std::unique_ptr<Program>& program : programs_) give_up_workspace(*program);
}

base::Status Cache::open() {
  for (const int member : channel_.team().state().members)
    group_ = runtime::hash_word(static_cast<uint64_t>(member), group_);
  group_ = runtime::hash_word(channel_.pod().barrier_id, group_);  // one of the team's ids: alike on all ranks
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

Program* Cache::find(const spec::Schedule& schedule, uint64_t serial) {
  if (const auto at = by_serial_.find(serial); serial != 0 && at != by_serial_.end()) return at->second;
  const auto [first, last] = by_sizes_.equal_range(hash_of_sizes(schedule));
  const auto found = std::find_if(first, last, [&](const auto& entry) { return entry.second->schedule == schedule; });
  if (found == last) return nullptr;
  Program& program = *found->second;
  if (serial == 0) return &program;
  by_serial_.erase(program.serial);
  program.serial = serial;
  return by_serial_[serial] = &program;
}

base::Result<Program*> Cache::find_or_prepare(const spec::Schedule& schedule,
                                              const std::function<std::string()>& agreement, const RunOptions& options,
                                              const Bindings& bindings, const Bodies& bodies) {
  Program* const found = options.known.has_value() ? *options.known : find(schedule, 0);
  if (found != nullptr) {
    programs_.splice(programs_.begin(), programs_, found->place);
    OVERLACE_TRY(pass_by(*found->shared));
  } else {
    OVERLACE_TRY(prepare(schedule, agreement(), options.local_param, bindings, bodies));
  }
  Program& program = *programs_.front();
  program.shared->last_use = channel_.team().runtime().state().stats.calls;
  return &program;
}

base::Status Cache::refuse(const spec::Schedule& schedule, std::string_view local_param, const base::Status& why) {
  begin_call();
  const std::string digest = spec::fingerprint(schedule, local_param);
  const auto meets_nobody = [&](const auto& shared) { return shared->digest == digest && !has_other_plan(*shared); };
  if (std::any_of(shared_.begin(), shared_.end(), meets_nobody) || !executor_->can_prepare().ok()) return why;
  // Peers that compare calls first wait for one, and would not come.
  if (channel_.team().runtime().state().options.checks.calls) return why;
  const CallMeeting meeting = meet_for_call(channel_.team(), group_, number_, why, "\n");
  followed_.reset();
  if (meeting.has_passed()) return why;  // peers that know the call are in it and wait for that of this rank
  ++number_;
  return meeting.all.status;
}

std::shared_ptr<void> Cache::hold(Program& program) {
  using Both = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  return std::make_shared<Both>(program.holds.take(), program.shared->holds.take());
}

/// Puts the program in front. Alone where the ranks know the agreement, as only N or K of this rank is new.
base::Status Cache::prepare(const spec::Schedule& schedule, std::string_view agreement, std::string_view local_param,
                            const Bindings& bindings, const Bodies& bodies) {
  if (const base::Status can = executor_->can_prepare(); !can.ok())
    return base::error(can.code(), "{}: {}", agreement, can.message());
  Team& team = channel_.team();
  const std::string digest = spec::fingerprint(schedule, local_param);
  const std::string key = key_of(schedule, agreement, digest);
  const std::shared_ptr<Shared> known = find_shared(agreement, key);
  const bool is_known = known != nullptr;
  base::Result<std::unique_ptr<Program>> expanded = expand_program(schedule, agreement, team.rank(), team.size());
  if (!expanded.ok()) {
    CallMeeting meeting;
    return is_known ? expanded.status() : meet(expanded.status(), Shared{}, "", &meeting);
  }
  Program& program = **expanded;
  if (!executor_->prepares_beside_calls(program, bodies)) OVERLACE_TRY(executor_->finish_calls());
  program.shared = std::make_shared<Shared>(shared_layout(program));
  if (is_known) {
    if (program.shared->offsets != known->offsets || program.shared->words != known->words) {
      return base::error(
          Errc::bad_schedule,
          "schedule {}: another value of {} makes {} signal words instead of {}, or moves buffers of the "
          "symmetric heap; wanted: a parameter that only this rank's own buffers depend on",
          schedule.family, local_param, program.shared->words, known->words);
    }
    program.shared = known;
  } else {
    program.shared->digest = digest;
    program.shared->agreement = agreement;
    program.shared->key = key;
    program.shared->key_hash = runtime::hash_text(key);
    program.shared->schedule = schedule;
    program.shared->keeps_memory = bodies.kernel.keeps_memory && bodies.kernel.keeps_memory(schedule);
  }
  if (!is_known || (has_other_plan(*program.shared) && program.shared != followed_)) {
    OVERLACE_TRY(prepare_with_peers(program, is_known, bindings, bodies));
  } else {
    if (const base::Status status = make_ready(program, bindings, bodies); !status.ok()) {
      give_up_workspace(program);
      return status;
    }
    OVERLACE_TRY(pass_by(*program.shared));
  }
  if (!is_known) {
    if (shared_.size() >= kMaxShared) OVERLACE_TRY(make_room(nullptr, {}));
    shared_.push_back(program.shared);
    by_agreement_.emplace(hash_of(agreement), program.shared);
  }
  keep(std::move(expanded).value());
  ++team.runtime().state().stats.preparations;
  return {};
}

/// Whether the ranks run calls like this one, which differ in N or K at most, by another schedule, too. Then a rank for
/// which N or K is new does not know which one its peers take.
bool Cache::has_other_plan(const Shared& shared) const {
  const auto [first, last] = by_agreement_.equal_range(hash_of(shared.agreement));
  return std::any_of(first, last, [&](const auto& entry) {
    return entry.second->agreement == shared.agreement && entry.second->key != shared.key;
  });
}

/// Null if the ranks do not know the agreement.
std::shared_ptr<Shared> Cache::find_shared(std::string_view agreement, std::string_view key) const {
  const auto [first, last] = by_agreement_.equal_range(hash_of(agreement));
  const auto found = std::find_if(first, last, [&](const auto& entry) { return entry.second->key == key; });
  return found == last ? nullptr : found->second;
}

/// A call for which this rank needs nobody. Ranks for which it is new learn what they meet in it.
base::Status Cache::pass_by(const Shared& shared) {
  followed_.reset();
  const runtime::PostedCall call{channel_.pod().barrier_id, number_++, shared.key_hash};
  channel_.team().runtime().state().control->pass(group_, call.number, call.key);
  return compare_with_neighbours(call, shared);
}

/// Where ranks differ, two neighbours do, and the later one sees it before anything of its call moves.
base::Status Cache::compare_with_neighbours(const runtime::PostedCall& call, const Shared& shared) {
  const Team& team = channel_.team();
  runtime::BackendState& backend = *team.runtime().state().backend;
  runtime::CallBoard* const mine = backend.call_board(team.world_rank(team.rank()));
  if (mine == nullptr || team.size() == 1) return {};
  mine->post(call);
  for (const int step : {1, team.size() - 1}) {
    const int rank = (team.rank() + step) % team.size();
    const runtime::CallBoard* const board = backend.call_board(team.world_rank(rank));
    const std::optional<uint64_t> key = board == nullptr ? std::nullopt : board->other_key(call);
    if (!key.has_value()) continue;
    const auto theirs = std::find_if(shared_.begin(), shared_.end(),
                                     [&](const auto& s) { return runtime::CallBoard::key_bits(s->key_hash) == *key; });
    return abort_with(base::error(
        Errc::desync, "ranks of team \"{}\" do not make the same calls: rank {} makes {}; rank {} makes {}",
        team.name(), team.rank(), shared.key, rank, theirs == shared_.end() ? kUnknownCall : (*theirs)->key));
  }
  return {};
}

/// All ranks that have no program for this call come here. Ok where they have one key, or where those that passed by,
/// which are in the call, have that of `shared`.
base::Status Cache::meet(const base::Status& mine, const Shared& shared, std::string_view rest, CallMeeting* meeting) {
  Team& team = channel_.team();
  *meeting = meet_for_call(team, group_, number_, mine, base::format("{}\n{}", shared.key, rest));
  if (meeting->has_passed()) return follow(*meeting, mine, shared);
  ++number_;
  followed_.reset();
  OVERLACE_TRY(meeting->all.status);
  Agreement keys = meeting->all;
  for (std::string& text : keys.texts) text.resize(std::min(text.find('\n'), text.size()));
  const base::Status agreed = agree_outcome(keys, "call and schedule", team.name());
  if (!agreed.ok()) impasse_ = Impasse::schedules_differ;
  return agreed;
}

base::Status Cache::abort_with(const base::Status& cause) {
  channel_.team().runtime().abort(cause.code(), cause.message());
  return cause;
}

/// Peers are in the call already, with the schedule of theirs. They cannot be called back.
base::Status Cache::follow(const CallMeeting& meeting, const base::Status& mine, const Shared& shared) {
  const Team& team = channel_.team();
  const auto is_in = [](const std::optional<uint64_t>& answer) { return answer.has_value(); };
  const auto first = std::find_if(meeting.passed.begin(), meeting.passed.end(), is_in);
  const auto name = [&](uint64_t hash) {
    const auto found = std::find_if(shared_.begin(), shared_.end(), [&](const auto& s) { return s->key_hash == hash; });
    return found == shared_.end() ? kUnknownCall : (*found)->key;
  };
  const auto rank = first - meeting.passed.begin();
  if (!mine.ok()) {
    return abort_with(base::error(mine.code(), "rank {} refused a call that rank {} of team \"{}\" has begun: {}",
                                  team.rank(), rank, team.name(), mine.message()));
  }
  for (auto other = first; other != meeting.passed.end(); ++other) {
    if (!other->has_value() || **other == **first) continue;
    return abort_with(base::error(
        Errc::plan_mismatch, "call and schedule differs between ranks of team \"{}\": rank {} has {}, rank {} has {}",
        team.name(), rank, name(**first), other - meeting.passed.begin(), name(**other)));
  }
  if (**first == shared.key_hash) return {};
  const base::Status differs =
      base::error(Errc::plan_mismatch,
                  "call and schedule differs between ranks of team \"{}\": rank {} has begun {}, rank {} has {}",
                  team.name(), rank, name(**first), team.rank(), shared.key);
  const auto theirs =
      std::find_if(shared_.begin(), shared_.end(), [&](const auto& s) { return s->key_hash == **first; });
  const bool is_alike = theirs != shared_.end() && (*theirs)->agreement == shared.agreement;
  if (!is_alike || !follows_peers || followed_ != nullptr) return abort_with(differs);
  followed_ = *theirs;
  impasse_ = Impasse::peers_have_another;
  return differs;
}

/// Collective, but for ranks that are in the call already. Fresh heap memory may get a pattern: nobody puts before all
/// have it. Nobody waits on its GPU before all have loaded the kernels of this call and made its allocations. And where
/// one rank cannot go on, none does: so there is one meeting, behind all that may fail.
base::Status Cache::prepare_with_peers(Program& program, bool is_known, const Bindings& bindings,
                                       const Bodies& bodies) {
  Shared& shared = *program.shared;
  CallMeeting meeting;
  if (!executor_->prepares_beside_peers()) OVERLACE_TRY(meet({}, shared, "", &meeting));
  for (uint64_t least = 0;;) {
    base::Status status = is_known ? base::Status() : allocate_shared(shared, name_of(program), least);
    if (status.ok()) status = guarded([&] { return make_ready(program, bindings, bodies); });
    const bool is_full = status.code() == Errc::heap_exhausted;
    const uint64_t offset = shared.offset();
    const std::string rest = base::format("{} {}", offset, is_full ? status.message() : "");
    base::Status outcome = meet(is_full ? base::Status() : status, shared, rest, &meeting);
    base::Status why = is_full ? status : base::Status();
    bool is_one = true;
    for (size_t r = 0; outcome.ok() && !meeting.has_passed() && r < meeting.all.texts.size(); ++r) {
      const std::string text = meeting.all.texts[r].substr(shared.key.size() + 1);
      const size_t end = text.find(' ');
      const std::vector<uint64_t> theirs = read_numbers(text.substr(0, end));
      if (theirs.size() != 1) return agree_outcome(meeting.all, "memory of the call", channel_.team().name());
      if (why.ok() && end + 1 < text.size()) {
        why = base::error(Errc::heap_exhausted, "rank {} refused the call, so that no rank of team \"{}\" makes it: {}",
                          r, channel_.team().name(), text.substr(end + 1));
      }
      // A rank that is in several teams may have other free places than its peers here: all take the highest.
      least = std::max(least, theirs[0]);
      is_one = is_one && theirs[0] == offset;
    }
    if (outcome.ok() && meeting.has_passed()) outcome = pass_by(shared);
    if (outcome.ok() && why.ok() && is_one) {
      RuntimeState& runtime = channel_.team().runtime().state();
      if (!is_known && shared.block != nullptr && !shared.block->is_shared)
        runtime.fold_heap_call(base::format("alloc {} 256 \"{}\"", shared.bytes(), name_of(program)));
      return {};
    }
    give_up_workspace(program);
    if (!is_known) {
      if (shared.block != nullptr && !shared.block->is_shared)
        channel_.team().runtime().state().give_back(std::exchange(shared.block->memory, {}));
      shared.block.reset();
      free_shared(shared);
    }
    OVERLACE_TRY(outcome);
    if (why.ok()) continue;
    OVERLACE_TRY(make_room(&shared, why));
    least = 0;  // places below are free again, on all ranks or on none
  }
}

/// What is this rank's own.
base::Status Cache::make_ready(Program& program, const Bindings& bindings, const Bodies& bodies) {
  const bool is_large = executor_->workspace_bytes() > kMaxWorkspaces;
  if (const size_t most = is_large ? kLeastPrograms : kMaxPrograms; programs_.size() >= most) {
    const auto held = [](const std::unique_ptr<Program>& p) { return p->holds.count() != 0; };
    auto free = programs_.size() - static_cast<size_t>(std::count_if(programs_.begin(), programs_.end(), held));
    if (free >= most) {
      OVERLACE_TRY(executor_->finish_calls());
      // Several at once, so that not every new shape has to wait for earlier calls.
      for (const size_t left = most - most / kPart; free > left && drop_oldest_program();) --free;
    }
  }
  OVERLACE_TRY(allocate_workspace(program));
  return executor_->prepare(program, bindings, bodies);
}

/// The lowest place at `least_offset` or behind it. Local: the caller compares it with those of the peers.
base::Status Cache::allocate_shared(Shared& shared, const std::string& name, uint64_t least_offset) {
  return guarded([&] {
    shared.lacks_heap = true;
    const uint64_t bytes = shared.bytes();
    if (bytes != 0 && shared.block == nullptr) {
      shared.block = std::make_shared<Block>(
          Block{channel_.team().runtime().state().allocate(bytes, 256, name, least_offset), false});
    }
    shared.lacks_heap = false;
    const uint32_t ids = shared.words * static_cast<uint32_t>(shared.copies);
    if (ids != 0) shared.ids = channel_.ids(ids, executor_->domain(), name.c_str());
    return base::Status();
  });
}

base::Status Cache::allocate_workspace(Program& program) {
  if (program.workspace_bytes == 0) return {};
  for (;;) {
    const base::Status status =
        executor_->allocate(program.workspace_bytes, name_of(program).c_str(), &program.workspace);
    if (status.code() != Errc::out_of_memory) return status;
    OVERLACE_TRY(executor_->finish_calls());
    if (!drop_oldest_program()) return status;
  }
}

void Cache::keep(std::unique_ptr<Program> program) {
  programs_.push_front(std::move(program));
  Program& kept = *programs_.front();
  kept.place = programs_.begin();
  by_sizes_.emplace(hash_of_sizes(kept.schedule), &kept);
}

void Cache::forget(Programs::iterator program) {
  give_up_workspace(**program);
  const auto [first, last] = by_sizes_.equal_range(hash_of_sizes((*program)->schedule));
  by_sizes_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == program->get(); }));
  by_serial_.erase((*program)->serial);
  programs_.erase(program);
}

void Cache::give_up_workspace(Program& program) {
  program.prepared.reset();
  if (program.workspace != nullptr) executor_->deallocate(program.workspace);
  program.workspace = nullptr;
}

/// Local: its shared part stays. False where graphs hold all there are. What the program queued has completed: this
/// runs behind finish_calls.
bool Cache::drop_oldest_program() {
  for (auto at = programs_.end(); at != programs_.begin();) {
    if ((*--at)->holds.count() != 0) continue;
    forget(at);
    return true;
  }
  return false;
}

/// Those of the team's channels, in one order on all ranks.
std::vector<Cache*> Cache::caches_of_team() {
  std::vector<Cache*> out;
  for (const std::unique_ptr<ChannelState>& channel : channel_.team().state().channels)
    if (Cache* cache = known(*channel); cache != nullptr) out.push_back(cache);
  return out;
}

/// Collective. For what is `wanted`: lets the heap grow, gives it the memory of others of this channel, or gives up a
/// shared part of any of the team's channels that no rank's graphs hold; else `why`, and all ranks know that there is
/// an impasse. Without it: gives up old ones of
/// this channel, if there are any. Ranks may have other holds, as graphs end at other times on each, and other stamps,
/// as calls may be refused on one of them: rank 0 says which was used last.
base::Status Cache::make_room(Shared* wanted, const base::Status& why) {
  constexpr size_t kMostPlaces = 2048;  // so that their text fits one exchange
  Team& team = channel_.team();
  RuntimeState& runtime = team.runtime().state();
  if (wanted != nullptr && wanted->bytes() > runtime.options.max_heap_bytes) {
    impasse_ = Impasse::heap_is_full;
    return why;
  }
  Room mine{.now = runtime.stats.calls,
            .lacks_heap = wanted != nullptr && wanted->lacks_heap ? 1u : 0u,
            .holds = {},
            .last_use = {}};
  std::vector<Place> places;
  const std::vector<Cache*> caches = wanted == nullptr ? std::vector<Cache*>{this} : caches_of_team();
  for (Cache* cache : caches) {
    for (size_t i = 0; i < cache->shared_.size() && places.size() < kMostPlaces; ++i) {
      places.push_back({cache, i});
      mine.holds.push_back(static_cast<uint64_t>(cache->shared_[i]->holds.count()));
      mine.last_use.push_back(cache->shared_[i]->last_use);
    }
  }
  const Agreement all = agree_texts(team, {}, to_text(mine));
  OVERLACE_TRY(all.status);
  bool lacks_heap = false;
  Room first;
  std::vector<uint64_t> holds(places.size());
  for (size_t r = 0; r < all.texts.size(); ++r) {
    Room theirs = read_room(all.texts[r]);
    if (theirs.holds.size() != places.size()) {
      return base::error(Errc::plan_mismatch, "rank {} has prepared {} schedules, rank {} {}: they made other calls",
                         team.rank(), places.size(), r, theirs.holds.size());
    }
    lacks_heap = lacks_heap || theirs.lacks_heap != 0;
    for (size_t i = 0; i < holds.size(); ++i) holds[i] = std::max(holds[i], theirs.holds[i]);
    if (r == 0) first = std::move(theirs);
  }
  std::vector<size_t> victims = least_recently_used(holds, first.last_use);
  const bool is_idle = !victims.empty() && first.now - first.last_use[victims[0]] > kIdleCalls;
  const bool can_grow =
      lacks_heap && team.size() == runtime.world && runtime.blocks.capacity() < runtime.options.max_heap_bytes;
  // All ranks: behind it nobody writes into what goes.
  const auto finish_all = [&]() -> base::Status {
    base::Status finished;
    for (Cache* cache : caches)
      if (const base::Status own = cache->executor_->drain(); !own.ok()) finished = own;
    return agree_texts(team, finished, "").status;
  };
  if (can_grow && !is_idle) {
    OVERLACE_TRY(finish_all());
    const base::Result<bool> has_grown = runtime.grow_heap(wanted->bytes());
    if (!has_grown.ok() || *has_grown) return has_grown.status();
  }
  if (lacks_heap && !(can_grow && is_idle) && share_block(*wanted, places, holds, first.last_use)) return {};
  if (!victims.empty()) {
    OVERLACE_TRY(finish_all());
    // Several of many, so that not every new shape has to meet for its place.
    victims.resize(std::max<size_t>(victims.size() / kPart, 1));
    std::sort(victims.begin(), victims.end(), std::greater<>());  // places behind one that goes move up
    for (const size_t v : victims) places[v].cache->drop_shared(places[v].index);
    return {};
  }
  if (wanted == nullptr) return {};
  impasse_ = Impasse::heap_is_full;
  uint64_t held_bytes = 0, held_calls = 0;
  std::set<const Block*> held;
  for (size_t i = 0; i < places.size(); ++i) {
    held_calls += holds[i];
    const Block* const block = places[i].cache->shared_[places[i].index]->block.get();
    if (block != nullptr && held.insert(block).second) held_bytes += block->memory.bytes;
  }
  if (held_calls == 0) return why;
  return base::error(why.code(), "{}; captured graphs hold {} bytes of it for {} calls until they are destroyed",
                     why.message(), held_bytes, held_calls);
}

/// Gives `wanted` the memory of other agreements of this channel, the same on all ranks: memory that is shared already,
/// else that of the least recently used. Earlier calls may still use it: the barrier waits for them. Graphs that hold
/// memory which was not shared when they were captured make no barrier, so that stays theirs.
bool Cache::share_block(Shared& wanted, const std::vector<Place>& places, const std::vector<uint64_t>& holds,
                        const std::vector<uint64_t>& last_use) {
  if (!executor_->has_barrier() || wanted.keeps_memory) return false;
  std::shared_ptr<Block> best;
  std::pair<bool, uint64_t> best_rank;
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].cache != this) continue;
    const Shared& other = *shared_[places[i].index];
    if (other.block == nullptr || other.keeps_memory || other.block->memory.bytes < wanted.bytes()) continue;
    if (!other.block->is_shared && holds[i] != 0) continue;
    const std::pair rank(!other.block->is_shared, last_use[i]);
    if (best != nullptr && best_rank <= rank) continue;
    best = other.block;
    best_rank = rank;
  }
  if (best == nullptr) return false;
  best->is_shared = true;
  wanted.block = std::move(best);
  ++channel_.team().runtime().state().stats.shared_blocks;
  return true;
}

/// After all ranks have met: no peer writes there any more.
void Cache::drop_shared(size_t index) {
  const std::shared_ptr<Shared> victim = shared_[index];
  shared_.erase(shared_.begin() + static_cast<std::ptrdiff_t>(index));
  const auto [first, last] = by_agreement_.equal_range(hash_of(victim->agreement));
  by_agreement_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == victim; }));
  for (auto at = programs_.begin(); at != programs_.end();) {
    const auto program = at++;
    if ((*program)->shared == victim) forget(program);
  }
  free_shared(*victim);
  ++channel_.team().runtime().state().stats.evictions;
}

void Cache::free_shared(Shared& shared) {
  if (shared.block != nullptr && shared.block.use_count() == 1)
    channel_.team().runtime().heap().free(shared.block->memory);
  if (shared.ids.count != 0) channel_.release(shared.ids);
  shared.block.reset();
  shared.ids = {};
  shared.cells.reset();
  shared.kernel.reset();
}

}  // namespace overlace::exec
