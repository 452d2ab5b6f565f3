#include "src/gnn/pipeline/epoch.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "src/base/crc32c.h"
#include "src/base/env.h"

namespace overlace::gnn {
namespace {

using Clock = std::chrono::steady_clock;

int64_t ns_of(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
double seconds_of(int64_t ns) { return static_cast<double>(ns) * 1e-9; }
double seconds_since(Clock::time_point begin) { return seconds_of(ns_of(Clock::now()) - ns_of(begin)); }

/// This thread does not push aside the one that wakes it: a trainer that releases a batch goes on training, and the
/// stage takes the next free processor. Where it is refused all goes on as before, slower.
void yield_to_waker() {
#ifdef SCHED_BATCH
  const sched_param parameters{};
  (void)::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &parameters);
#endif
}

}  // namespace

Epoch::Epoch(EpochContext context, const std::vector<int64_t>& batches, int64_t skipped, int64_t first_position)
    : context_(std::move(context)),
      depth_(context_.plan.depth),
      slots_(context_.buffers.ring.slots()),
      row_bytes_(context_.plan.row_bytes),
      before_(context_.engine.stats()) {
  const PackPlan& plan = context_.plan;
  const Segments segments = plan.segments();
  for (int64_t i = 0; i < std::ssize(batches); ++i) {
    const int64_t b = batches[static_cast<size_t>(i)], segment = segments.of(b);
    Item item;
    item.number = b;
    item.place = plan.extents[static_cast<size_t>(b)];
    item.position = i < skipped ? -1 : first_position + i - skipped;
    if (item.position >= 0) item_of_.push_back(std::ssize(items_));
    items_.push_back(std::move(item));
    const bool is_last = segments.end(segment) == b + 1;
    if (plan.order.order == BatchOrder::shuffle || (!is_last && (b + 1) % plan.epoch_batches != 0)) continue;
    Item back;  // between two sampled epochs of a segment nothing is read, but waited for
    back.number = -1 - segment;
    if (is_last) back.place = plan.restores[static_cast<size_t>(segment)];
    back.position = -1;
    items_.push_back(std::move(back));
  }
  if (context_.device != nullptr) {
    // Whoever begins has no use for outputs of before: what its stream still does with them comes first, and before
    // that what the stream did that it had when it released them.
    const auto take_back = [&](int event) -> base::Status {
      OVERLACE_TRY(context_.device->wait(Lane::transfer, event));
      return context_.device->record(Lane::caller, event);
    };
    for (int64_t i = 0; i < LoaderBuffers::kOutputs; ++i)
      if (base::Status status = take_back(released_event(i)); !status.ok()) fail(std::move(status));
  }
  try {
    for (const auto loop : {&Epoch::read_loop, &Epoch::verify_loop, &Epoch::gather_loop, &Epoch::admit_loop})
      threads_.emplace_back(&Epoch::run, this, loop);
  } catch (const std::system_error& error) {
    fail(base::error(Errc::out_of_memory, "a thread of the loader cannot start: {}", error.what()));
  }
}

Epoch::~Epoch() { (void)end(); }

base::Status Epoch::end() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  if (context_.device == nullptr) return {};
  base::Status status = context_.device->drain();
  if (!status.ok()) fail(status);
  return status;
}

void Epoch::run(void (Epoch::*loop)()) {
  if (loop != &Epoch::read_loop) yield_to_waker();
  try {
    if (context_.device != nullptr) context_.device->enter().or_throw();
    (this->*loop)();
  } catch (...) {
    fail(base::status_of_current_exception());
  }
}

void Epoch::fail(base::Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = std::move(status);
    stops_ = true;
  }
  wake_all();
}

void Epoch::wake_all() {
  for (std::condition_variable* one : {&reader_, &verifier_, &gatherer_, &admitter_, &caller_}) one->notify_all();
}

/// False where the epoch ends instead.
bool Epoch::wait(std::unique_lock<std::mutex>& lock, std::condition_variable& mine,
                 const std::function<bool()>& ready) {
  mine.wait(lock, [&] { return stops_ || ready(); });
  return !stops_;
}

void Epoch::before(Stage stage, int64_t item) const {
  if (context_.options.before) context_.options.before(stage, item);
}

/// R3, and one restore at a time.
bool Epoch::may_read(int64_t index) const {
  if (index >= std::ssize(items_)) return false;
  if (items_[static_cast<size_t>(index)].number < 0 && last_restore_ >= gathered_) return false;
  const int64_t before = index - slots_;
  return before < 0 || (admitted_ > before && gathered_ > before + depth_);
}

/// Requests all that may be read now; true if there was any. Gives up the lock meanwhile.
bool Epoch::begin_reads(std::unique_lock<std::mutex>& lock) {
  std::vector<int64_t> extents, pages;
  for (; may_read(next_read_); ++next_read_) {
    Item& item = items_[static_cast<size_t>(next_read_)];
    if (item.number < 0) last_restore_ = next_read_;
    if (item.place.bytes > 0) {
      extents.push_back(next_read_);
      continue;
    }
    item.state = State::ready;  // a restore of nothing
    gatherer_.notify_one();
  }
  for (int64_t i = gathered_; i < next_read_; ++i) {
    Item& item = items_[static_cast<size_t>(i)];
    if (item.state == State::wants_pages) pages.push_back(i);
    if (item.state == State::waiting && std::find(extents.begin(), extents.end(), i) == extents.end())
      extents.push_back(i);  // once more
  }
  const auto begin = [this, now = ns_of(Clock::now())](int64_t i, State state, Part part) {
    Item& item = items_[static_cast<size_t>(i)];
    item.state = state;
    if (time_of(item, part).begin_ns == 0) time_of(item, part).begin_ns = now;
  };
  for (const int64_t i : extents) begin(i, State::reading, Part::read);
  for (const int64_t i : pages) begin(i, State::paging, Part::pages);
  lock.unlock();
  for (const int64_t i : extents) {
    before(Stage::read, i);
    const ExtentPlace& place = items_[static_cast<size_t>(i)].place;
    context_.engine.read(context_.packs, place.offset, place.bytes, slot(i), 2 * static_cast<uint64_t>(i)).or_throw();
  }
  for (const int64_t i : pages) request_pages(i);
  lock.lock();
  return !extents.empty() || !pages.empty();
}

void Epoch::request_pages(int64_t index) {
  const PackPlan& plan = context_.plan;
  Item& item = items_[static_cast<size_t>(index)];
  const int64_t first = plan.first_page[static_cast<size_t>(item.number / plan.disk_segment_batches)];
  item.to_come = std::ssize(item.view.pages);
  for (int64_t k = 0; k < std::ssize(item.view.pages); ++k) {
    const int64_t page = first + item.view.pages[static_cast<size_t>(k)];
    const auto to = slot(index).subspan(static_cast<size_t>(context_.buffers.extent_room + k * plan.page.bytes));
    context_.engine
        .read(context_.pages, page * plan.page.bytes, plan.page.bytes, to.first(static_cast<size_t>(plan.page.bytes)),
              2 * static_cast<uint64_t>(index) + 1)
        .or_throw();
  }
}

/// With the lock held.
void Epoch::completed(const io::Completion& completion) {
  Item& item = items_[completion.tag / 2];
  if (!completion.status.ok() && item.failure.ok()) item.failure = completion.status;
  if (completion.tag % 2 == 0) {
    item.state = State::read;
    time_of(item, Part::read).end_ns = ns_of(Clock::now());
  } else if (--item.to_come == 0) {
    item.state = State::paged;
    time_of(item, Part::pages).end_ns = ns_of(Clock::now());
  }
}

void Epoch::read_loop() {
  io::IoEngine& engine = context_.engine;
  try {
    std::unique_lock lock(mutex_);
    while (!stops_) {
      begin_reads(lock);
      if (stops_) break;
      if (engine.pending() == 0) {
        const auto wants = [this] {
          if (may_read(next_read_)) return true;
          for (int64_t i = gathered_; i < next_read_; ++i) {
            const State state = items_[static_cast<size_t>(i)].state;
            if (state == State::wants_pages || state == State::waiting) return true;
          }
          return false;
        };
        if (!wait(lock, reader_, wants)) break;
        continue;
      }
      lock.unlock();
      // NOTE: room for another read may come while this waits, so it does not wait long.
      constexpr int64_t kLookMs = 2;
      io::Completion completions[16];
      const auto n = engine.poll(completions, kLookMs);
      n.status().or_throw();
      lock.lock();
      for (size_t i = 0; i < *n; ++i) completed(completions[i]);
      if (*n > 0) verifier_.notify_one();
    }
  } catch (...) {
    fail(base::status_of_current_exception());
  }
  // The buffers belong to the kernel until all has ended.
  (void)engine.settle();
  const std::lock_guard lock(mutex_);
  reader_has_ended_ = true;
}

void Epoch::verify_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    int64_t found = -1;
    const auto has_one = [&] {
      for (int64_t i = gathered_; i < next_read_ && found < 0; ++i) {
        const State state = items_[static_cast<size_t>(i)].state;
        if (state == State::read || state == State::paged) found = i;
      }
      return found >= 0;
    };
    if (!wait(lock, verifier_, has_one)) return;
    Item& item = items_[static_cast<size_t>(found)];
    const bool has_pages = item.state == State::paged;
    lock.unlock();
    before(Stage::verify, found);
    const Clock::time_point begin = Clock::now();
    base::Status status = item.failure.ok() ? verify(found, has_pages, false) : item.failure;
    if (status.code() == Errc::corrupt && item.is_second_try && context_.source != nullptr)
      status = verify(found, has_pages, true);
    const Interval time{ns_of(begin), ns_of(Clock::now())};
    lock.lock();
    stats_.verify_s += seconds_of(time.end_ns - time.begin_ns);
    time_of(item, has_pages ? Part::page_check : Part::check) = time;
    if (status.ok()) {
      item.state = !has_pages && !item.view.pages.empty() ? State::wants_pages : State::ready;
      item.is_second_try = false;  // pages have one of their own
    } else if (status.code() == Errc::corrupt && !item.is_second_try) {
      item.is_second_try = true;
      item.state = has_pages ? State::wants_pages : State::waiting;
      ++stats_.read_again;
    } else {
      lock.unlock();
      return fail(std::move(status));
    }
    reader_.notify_one();
    gatherer_.notify_one();
  }
}

base::Status Epoch::verify(int64_t index, bool has_pages, bool mends) {
  Item& item = items_[static_cast<size_t>(index)];
  const PackPlan& plan = context_.plan;
  if (!has_pages) {
    const auto bytes = slot(index).first(static_cast<size_t>(item.place.bytes));
    const auto checked = !context_.options.checks_sums ? ExtentSumsChecked::none
                         : mends                       ? ExtentSumsChecked::all_but_rows
                                                       : ExtentSumsChecked::all;
    auto view = open_extent(bytes, plan.limits(item.number), context_.packs->path(), checked);
    if (!view.ok()) return view.status();
    const int64_t blocks = reinterpret_cast<const std::byte*>(view->program.data()) - bytes.data() - kExtentPage;
    const int64_t read = std::ssize(view->rows) / row_bytes_ + std::ssize(view->pages) * plan.page.rows;
    const bool is_batch = item.number >= 0;
    if (std::ssize(view->program) > plan.most_rows || std::ssize(view->pages) > plan.most_pages ||
        (is_batch && (blocks > plan.most_block_bytes || read > plan.max_ring_rows)))
      return base::error(Errc::corrupt,
                         "{}: extent {}: {} rows, {} pages, {} bytes of blocks, {} rows read; wanted at most {}, {}, {}"
                         ", {}",
                         context_.packs->path(), item.number, view->program.size(), view->pages.size(), blocks, read,
                         plan.most_rows, plan.most_pages, plan.most_block_bytes, plan.max_ring_rows);
    item.view = *view;
    return mends ? mend(index, has_pages) : base::Status();
  }
  if (mends) return mend(index, has_pages);
  if (!context_.options.checks_sums) return {};
  const int64_t first = plan.first_page[static_cast<size_t>(item.number / plan.disk_segment_batches)];
  for (int64_t k = 0; k < std::ssize(item.view.pages); ++k) {
    const int64_t page = first + item.view.pages[static_cast<size_t>(k)];
    const auto bytes = slot(index).subspan(static_cast<size_t>(context_.buffers.extent_room + k * plan.page.bytes),
                                           static_cast<size_t>(plan.page.bytes));
    const uint32_t seen = base::crc32c(bytes), wanted = plan.page_sums[static_cast<size_t>(page)];
    if (seen != wanted)
      return base::error(Errc::corrupt, "{}: page {} at byte {} for batch {}: checksum is {}, wanted {}",
                         context_.pages->path(), page, page * plan.page.bytes, item.number, seen, wanted);
  }
  return {};
}

void Epoch::gather_loop() {
  for (int64_t i = 0; i < std::ssize(items_); ++i) {
    Item& item = items_[static_cast<size_t>(i)];
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] {
        if (item.state != State::ready) return false;
        if (item.number < 0) return admitted_ == i;
        if (admitted_ < i - depth_) return false;
        if (item.position < 0) return true;
        const int64_t before = ordinal_of(item) - LoaderBuffers::kOutputs;  // what was in its output
        return before < released_ && (before < 0 || gathered_ > item_of_[static_cast<size_t>(before)]);
      };
      if (!wait(lock, gatherer_, ready)) return;
    }
    before(Stage::gather, i);
    const Clock::time_point begin = Clock::now();
    if (base::Status status = item.number < 0 ? restore(i) : gather(i); !status.ok()) return fail(std::move(status));
    {
      const std::lock_guard lock(mutex_);
      time_of(item, Part::gather) = {ns_of(begin), ns_of(Clock::now())};
      stats_.gather_s += seconds_since(begin);
      ++queued_;
      if (context_.device == nullptr) gathered_ = queued_;
    }
    caller_.notify_one();
    admitter_.notify_one();
    reader_.notify_one();
  }
}

void Epoch::admit_loop() {
  for (int64_t i = 0; i < std::ssize(items_); ++i) {
    Item& item = items_[static_cast<size_t>(i)];
    {
      std::unique_lock lock(mutex_);
      if (!wait(lock, admitter_, [&] { return queued_ > i; })) return;
    }
    if (context_.device != nullptr) {
      const auto is_gathered = wait_for_gather(i);
      if (!is_gathered.ok()) return fail(is_gathered.status());
      if (!*is_gathered) return;
    }
    before(Stage::admit, i);
    const Clock::time_point begin = Clock::now();
    const auto bytes = static_cast<size_t>(row_bytes_);
    if (item.number >= 0)
      for (const Admission& a : item.view.admissions)
        std::memcpy(context_.buffers.cpu.data() + a.slot * bytes, row_of(item, i, a.ring_row).data(), bytes);
    {
      const std::lock_guard lock(mutex_);
      time_of(item, Part::admit) = {ns_of(begin), ns_of(Clock::now())};
      stats_.admit_s += seconds_since(begin);
      if (item.number >= 0) stats_.admitted += std::ssize(item.view.admissions);
      ++admitted_;
    }
    gatherer_.notify_one();
    reader_.notify_one();
    caller_.notify_one();
  }
}

/// What the host does next writes over what a gather of the device reads. False where the epoch ends instead.
base::Result<bool> Epoch::wait_for_gather(int64_t index) {
  constexpr int64_t kLookMs = 20;
  const int64_t number = items_[static_cast<size_t>(index)].number;
  auto end = Clock::now() + std::chrono::seconds(base::env().timeout_s);
  bool is_begun = number < 0;
  for (bool is_reached = number < 0; !is_reached;) {  // a restore is done by the host
    const auto looked = context_.device->reached(gathered_event(index), kLookMs);
    if (!looked.ok()) return looked.status();
    is_reached = *looked;
    if (!is_reached && !is_begun) {
      const auto begun = context_.device->reached(begun_event(index), 0);
      if (!begun.ok()) return begun.status();
      is_begun = *begun;
      // How long the caller's stream takes is its own affair.
      end = Clock::now() + std::chrono::seconds(base::env().timeout_s);
    }
    const std::lock_guard lock(mutex_);
    waits_for_caller_ = !is_begun && !is_reached;
    if (stops_) return false;
    if (!is_reached && Clock::now() >= end)
      return base::error(Errc::timeout, "batch {} was not gathered on its device within {} s", number,
                         base::env().timeout_s);
  }
  {
    const std::lock_guard lock(mutex_);
    gathered_ = index + 1;
  }
  gatherer_.notify_one();
  reader_.notify_one();
  return true;
}

std::string Epoch::stuck() const {
  constexpr const char* kNames[] = {"a place in the ring",    "its extent", "its check", "its pages", "its pages",
                                    "the check of its pages", "its turn"};
  if (queued_ >= std::ssize(items_)) return "nothing";
  const Item& item = items_[static_cast<size_t>(queued_)];
  return base::format("{} waits for {}, {} of {} batches before it are admitted{}", item.number,
                      kNames[static_cast<size_t>(item.state)], admitted_, queued_,
                      waits_for_caller_ ? ", the caller's stream is still busy with a batch that was released" : "");
}

base::Result<std::optional<LoadedBatch>> Epoch::next() {
  const auto timeout = std::chrono::seconds(base::env().timeout_s);
  std::unique_lock lock(mutex_);
  end_training();
  OVERLACE_TRY(failure_);
  if (delivered_ == std::ssize(item_of_)) {
    // What follows the last batch, a restore, belongs to the epoch.
    if (!caller_.wait_for(lock, timeout, [this] { return stops_ || admitted_ == std::ssize(items_); }))
      return base::error(Errc::timeout, "what follows the last batch did not come within {} s: batch {}",
                         base::env().timeout_s, stuck());
    OVERLACE_TRY(failure_);
    return std::optional<LoadedBatch>();
  }
  if (delivered_ - released_ >= LoaderBuffers::kOutputs)
    return base::invalid_argument("{} batches are held, wanted at most {}: release one first", delivered_ - released_,
                                  LoaderBuffers::kOutputs - 1);
  const int64_t index = item_of_[static_cast<size_t>(delivered_)];
  const Clock::time_point begin = Clock::now();
  if (!caller_.wait_for(lock, timeout, [&] { return stops_ || queued_ > index; }))
    return base::error(Errc::timeout, "batch {} did not come within {} s: batch {}",
                       items_[static_cast<size_t>(index)].number, base::env().timeout_s, stuck());
  stats_.waited_s += seconds_since(begin);
  OVERLACE_TRY(failure_);
  if (context_.device != nullptr) OVERLACE_TRY(context_.device->wait(Lane::caller, gathered_event(index)));
  ++delivered_;
  ++stats_.batches;
  time_of(items_[static_cast<size_t>(index)], Part::train).begin_ns = ns_of(Clock::now());
  return std::optional<LoadedBatch>(items_[static_cast<size_t>(index)].out);
}

void Epoch::release() {
  base::Status status;
  {
    const std::lock_guard lock(mutex_);
    if (released_ == delivered_) return;
    if (context_.device != nullptr) status = context_.device->record(Lane::caller, released_event(released_));
    ++released_;
  }
  if (!status.ok()) return fail(std::move(status));
  gatherer_.notify_one();
}

/// With the lock held: the caller is done with what next() gave last.
void Epoch::end_training() {
  if (delivered_ == 0) return;
  Interval& time = time_of(items_[static_cast<size_t>(item_of_[static_cast<size_t>(delivered_ - 1)])], Part::train);
  if (time.end_ns == 0) time.end_ns = ns_of(Clock::now());
}

bool Epoch::is_over() const {
  const std::lock_guard lock(mutex_);
  return failure_.ok() && admitted_ == std::ssize(items_);
}

/// With the lock held.
std::vector<Epoch::Service> Epoch::services() const {
  std::vector<Service> out;
  for (int64_t i = 0; i < next_read_; ++i)
    for (const Part part : {Part::read, Part::pages})
      if (const Interval& time = items_[static_cast<size_t>(i)].times[static_cast<size_t>(part)]; time.end_ns > 0)
        out.push_back({i, part, time});
  std::sort(out.begin(), out.end(), [](const Service& a, const Service& b) { return a.time.end_ns < b.time.end_ns; });
  int64_t end = 0;
  for (Service& read : out) {
    read.time.begin_ns = std::max(read.time.begin_ns, end);
    end = read.time.end_ns;
  }
  return out;
}

/// What this part of a checked item moves.
int64_t Epoch::bytes_of(const Item& item, Part part) const {
  const ExtentView& view = item.view;
  switch (part) {
    case Part::read:
      return item.place.bytes;
    case Part::pages:
      return std::ssize(view.pages) * context_.plan.page.bytes;
    case Part::gather:
      return item.position < 0 ? 0 : std::ssize(view.program) * row_bytes_;
    case Part::admit:
      return item.number < 0 ? 0 : std::ssize(view.admissions) * row_bytes_;
    default:
      return 0;
  }
}

base::Trace Epoch::timeline() const {
  struct Shown {
    const char *name, *lane, *kind;
  };
  constexpr Shown kShown[kParts] = {{"read", "disk", "copy"},     {"check", "check", "other"},
                                    {"pages", "disk", "copy"},    {"page_check", "check", "other"},
                                    {"gather", "gather", "copy"}, {"admit", "admit", "copy"},
                                    {"train", "train", "gemm"}};
  base::Trace out;
  out.title = "a training epoch from packs";
  const std::lock_guard lock(mutex_);
  const auto put = [&](int64_t i, const Shown& shown, const Interval& time, int64_t bytes) {
    const char* prefix = items_[static_cast<size_t>(i)].number < 0 ? "restore_" : "";
    out.spans.push_back({static_cast<int>(context_.options.rank), shown.lane,
                         base::format("{}{}[{}]", prefix, shown.name, i), shown.kind, time.begin_ns, time.end_ns, bytes,
                         0});
  };
  const auto show = [&](int64_t i, Part part, const Interval& time) {
    put(i, kShown[static_cast<size_t>(part)], time, bytes_of(items_[static_cast<size_t>(i)], part));
    // What goes to a device is given with the gather, in no time of its own.
    if (part == Part::gather) put(i, {"to_gpu", "link", "copy"}, {time.begin_ns, time.begin_ns}, 0);
  };
  for (const Service& read : services()) show(read.item, read.part, read.time);
  for (int64_t i = 0; i < next_read_; ++i)
    for (const Part part : {Part::check, Part::page_check, Part::gather, Part::admit, Part::train})
      if (const Interval& time = items_[static_cast<size_t>(i)].times[static_cast<size_t>(part)]; time.end_ns > 0)
        show(i, part, time);
  return out;
}

LoaderStats Epoch::stats() const {
  const std::lock_guard lock(mutex_);
  LoaderStats out = stats_;
  for (const Service& read : services()) out.read_s += seconds_of(read.time.end_ns - read.time.begin_ns);
  // NOTE: the engine's counts belong to the reading thread; they are exact once the epoch is over.
  const bool is_over = admitted_ == std::ssize(items_) || reader_has_ended_;
  if (is_over) {
    out.bytes_read = context_.engine.stats().bytes_read - before_.bytes_read;
    out.requests = context_.engine.stats().requests - before_.requests;
  }
  return out;
}

}  // namespace overlace::gnn
