// The stages of one training epoch and the rules between them.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/base/trace.h"
#include "src/gnn/pack/extent.h"
#include "src/gnn/pipeline/loader.h"

namespace overlace::gnn {

/// What an epoch works on; all of it outlives the epoch.
struct EpochContext {
  const PackPlan& plan;
  const LoaderOptions& options;
  LoaderBuffers& buffers;
  io::IoEngine& engine;
  LoaderDevice* device;  // null: CPUs gather
  RowStore* source;      // of rows that are damaged; null: they are an error
  std::shared_ptr<io::File> packs, pages;
  int64_t trace_batches;  // of a sampled epoch, of all ranks
};

/// Items are batches in their sequence and, behind each segment, its restore; between two sampled epochs of a segment a
/// restore of nothing. With D = plan.depth and R slots:
/// - R1: an item is gathered once it is verified and the item D + 1 before it is admitted; a restore, and with it what
///   follows, once all before it are.
/// - R2: an item is admitted once it is gathered.
/// - R3: a slot is read into again once the item that was in it is admitted and the D items behind that are gathered.
/// - R4: an output is written again once the consumer has released it and what was in it is gathered.
/// - R5: batches leave in their sequence.
/// A device is given the gather, which then waits there for the copy of what was read, and the copy for the trainer's
/// stream to be done with the output; that stream waits for the gather. For R2 to R4 a batch is gathered once the
/// device has reached the event behind it, at which the admitting thread looks.
class Epoch {
 public:
  /// `batches`: from the beginning of a segment; the first `skipped` of them only bring the caches up to date.
  Epoch(EpochContext context, const std::vector<int64_t>& batches, int64_t skipped, int64_t first_position);
  /// Stops all stages, as end() does.
  ~Epoch();
  /// Stops all stages and waits for what the kernel has begun and what the device was given; fails where that takes too
  /// long, and may then be called again.
  base::Status end();

  base::Result<std::optional<LoadedBatch>> next();
  void release();
  LoaderStats stats() const;
  /// What has ended, as spans named like those of `overlace sim graph gnn`. Reads lie one behind the other, each from
  /// where the one before it ended; what a device was given is shown as the host gave it.
  base::Trace timeline() const;
  /// All items are admitted: the CPU cache holds what it held at the start.
  bool is_over() const;

 private:
  enum class State { waiting, reading, read, wants_pages, paging, paged, ready };
  /// What an item goes through; the last is the caller's, from next() to the next next().
  enum class Part { read, check, pages, page_check, gather, admit, train };
  static constexpr size_t kParts = 7;
  struct Interval {
    int64_t begin_ns = 0, end_ns = 0;
  };
  struct Item {
    int64_t number = 0;    // of the batch, or -1 - segment
    int64_t position = 0;  // in the training epoch; -1: nobody wants its rows
    ExtentPlace place;
    State state = State::waiting;
    bool is_second_try = false;
    int64_t to_come = 0;  // requests of pages
    base::Status failure;
    ExtentView view;
    LoadedBatch out;
    std::array<Interval, kParts> times;  // written and read with the lock held
  };

  void read_loop();
  void verify_loop();
  void gather_loop();
  void admit_loop();
  /// Runs `loop`; what it throws or fails with becomes the epoch's failure.
  void run(void (Epoch::*loop)());
  void fail(base::Status status);
  bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& mine, const std::function<bool()>& ready);
  void wake_all();
  void before(Stage stage, int64_t item) const;
  static Interval& time_of(Item& item, Part part) { return item.times[static_cast<size_t>(part)]; }
  void end_training();
  int64_t bytes_of(const Item& item, Part part) const;
  /// Reads of extents and pages in the order in which they ended, none beside another.
  struct Service {
    int64_t item;
    Part part;
    Interval time;
  };
  std::vector<Service> services() const;

  std::span<std::byte> slot(int64_t index) const;
  std::span<const std::byte> row_of(const Item& item, int64_t index, uint32_t row) const;
  int64_t ordinal_of(const Item& item) const;
  int64_t ring_rows(const Item& item) const;
  bool may_read(int64_t index) const;
  bool begin_reads(std::unique_lock<std::mutex>& lock);
  void request_pages(int64_t index);
  void completed(const io::Completion& completion);
  /// `mends`: rows come from the source, where all else is whole.
  base::Status verify(int64_t index, bool has_pages, bool mends);
  base::Status mend(int64_t index, bool has_pages);
  /// Calls take(level, item, row) for each input row: the item in whose ring it is, the row there or in its cache.
  template <class Take>
  base::Status each_row(int64_t index, const Take& take);
  base::Status gather(int64_t index);
  base::Status gather_rows(int64_t index, std::byte* to);
  base::Status gather_on_device(int64_t index, std::byte* arrays);
  base::Status queue_ring(int64_t index);
  void describe(int64_t index, const std::byte* rows, const std::byte* arrays);
  base::Status restore(int64_t index);
  base::Result<bool> wait_for_gather(int64_t index);
  /// Events: an item's rows are in the device's ring, it is gathered, the output that it takes was free; an output is
  /// released.
  int transferred_event(int64_t index) const { return static_cast<int>(index % slots_); }
  int gathered_event(int64_t index) const { return static_cast<int>(slots_ + index % slots_); }
  int begun_event(int64_t index) const { return static_cast<int>(2 * slots_ + index % slots_); }
  int released_event(int64_t ordinal) const { return static_cast<int>(3 * slots_ + ordinal % LoaderBuffers::kOutputs); }
  std::string stuck() const;

  EpochContext context_;
  const int64_t depth_, slots_, row_bytes_;
  std::vector<Item> items_;
  std::vector<int64_t> item_of_;  // by batch that is delivered

  mutable std::mutex mutex_;
  // One for each thread and the caller: whoever changes something wakes those whose turn it may make, and nobody else.
  std::condition_variable reader_, verifier_, gatherer_, admitter_, caller_;
  bool stops_ = false, reader_has_ended_ = false;
  bool waits_for_caller_ = false;  // a device, to write over what the caller's stream still reads
  base::Status failure_;
  int64_t next_read_ = 0, queued_ = 0, gathered_ = 0, admitted_ = 0;  // items; queued: to be gathered by a device
  int64_t last_restore_ = -1;                                         // that was read
  int64_t delivered_ = 0, released_ = 0;                              // batches
  LoaderStats stats_;
  io::EngineStats before_;
  std::vector<std::thread> threads_;
};

}  // namespace overlace::gnn
