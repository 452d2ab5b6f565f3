// The stages of one training epoch and the rules between them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/gnn/pack/extent.h"
#include "src/gnn/pipeline/loader.h"

namespace overlace::gnn {

/// What an epoch works on; all of it outlives the epoch.
struct EpochContext {
  const PackPlan& plan;
  const LoaderOptions& options;
  LoaderBuffers& buffers;
  io::IoEngine& engine;
  std::shared_ptr<io::File> packs, pages;
  int64_t trace_batches;  // of a sampled epoch, of all ranks
};

/// Items are batches in their sequence and, behind each segment, its restore; between two sampled epochs of a segment a
/// restore of nothing. With D = plan.depth and R slots:
/// - R1: an item is gathered once it is verified and the item D + 1 before it is admitted; a restore, and with it what
///   follows, once all before it are.
/// - R2: an item is admitted once it is gathered.
/// - R3: a slot is read into again once the item that was in it is admitted and the D items behind that are gathered.
/// - R4: an output is written again once the consumer has released it.
/// - R5: batches leave in their sequence.
class Epoch {
 public:
  /// `batches`: from the beginning of a segment; the first `skipped` of them only bring the caches up to date.
  Epoch(EpochContext context, const std::vector<int64_t>& batches, int64_t skipped, int64_t first_position);
  /// Stops all stages and waits for what the kernel has begun.
  ~Epoch();

  base::Result<std::optional<LoadedBatch>> next();
  void release();
  LoaderStats stats() const;
  /// All items are admitted: the CPU cache holds what it held at the start.
  bool is_over() const;

 private:
  enum class State { waiting, reading, read, wants_pages, paging, paged, ready };
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

  std::span<std::byte> slot(int64_t index) const;
  std::span<const std::byte> row_of(const Item& item, int64_t index, uint32_t row) const;
  int64_t ring_rows(const Item& item) const;
  bool may_read(int64_t index) const;
  bool begin_reads(std::unique_lock<std::mutex>& lock);
  void request_pages(int64_t index);
  void completed(const io::Completion& completion);
  base::Status verify(int64_t index, bool has_pages);
  base::Status gather(int64_t index);
  base::Status restore(int64_t index);
  std::string stuck() const;

  EpochContext context_;
  const int64_t depth_, slots_, row_bytes_;
  std::vector<Item> items_;
  std::vector<int64_t> item_of_;  // by batch that is delivered

  mutable std::mutex mutex_;
  // Of each thread and the caller: whoever changes something wakes those whose turn it may make, and nobody else.
  std::condition_variable reader_, verifier_, gatherer_, admitter_, caller_;
  bool stops_ = false, reader_has_ended_ = false;
  base::Status failure_;
  int64_t next_read_ = 0, gathered_ = 0, admitted_ = 0;  // items
  int64_t last_restore_ = -1;                            // that was read
  int64_t delivered_ = 0, released_ = 0;                 // batches
  LoaderStats stats_;
  io::EngineStats before_;
  std::vector<std::thread> threads_;
};

}  // namespace overlace::gnn
