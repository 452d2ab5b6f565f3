// A loader on a device, which CPUs play: rows and arrays for all orders, however late or early its lanes are; each wait
// is owed; breaks, resumes, errors.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>

#include "src/gnn/pipeline/loader.h"
#include "src/gnn/plan/predict.h"
#include "tests/unit/gnn/support/artefacts.h"
#include "tests/unit/gnn/support/played_device.h"

namespace overlace::gnn {
namespace {

using test::Forgotten;
using test::PlayedDevice;

constexpr unsigned kAllLate = 7;

/// Datasets with rows that CPUs stage and with rows that the device reads from the CPU's cache, each packed for orders.
struct DeviceWorld {
  DeviceWorld() {
    for (const auto& [width, dim] : {std::pair{"narrow", 25}, {"wide", 160}}) {
      datasets.push_back(test::small_dataset(scratch.path(width), 1 << 11, dim));
      matrices.emplace_back(datasets.back());
      for (const auto& [name, order, policy, disk] :
           {std::tuple{"fixed", OrderChoice{BatchOrder::fixed, 0}, CachePolicy::belady, 0},
            {"segments", {BatchOrder::segments, 9}, CachePolicy::belady, 0},
            {"shuffle", {BatchOrder::shuffle, 0}, CachePolicy::hottest, 0},
            {"lru", {BatchOrder::fixed, 0}, CachePolicy::lru, 0},
            {"none", {BatchOrder::shuffle, 0}, CachePolicy::none, 0},
            {"deep", {BatchOrder::fixed, 0}, CachePolicy::belady, 0},
            {"cpu", {BatchOrder::fixed, 0}, CachePolicy::belady, 0},
            {"gpu", {BatchOrder::fixed, 0}, CachePolicy::belady, 0},
            {"whole", {BatchOrder::fixed, 0}, CachePolicy::belady, 0},
            {"disk", {BatchOrder::segments, 9}, CachePolicy::belady, 1}}) {
        const std::string path = scratch.path(std::string(width) + "-" + name + ".ovg");
        sample_artefact(datasets.back(), path, test::small_sample()).status().or_throw();
        ArtefactPackRequest request = test::small_pack(datasets.back(), order, policy);
        request.disk_bytes = disk * datasets.back().description().features.bytes * 2 / 3;
        if (name == std::string_view("deep")) request.depth = 6;  // more than there are outputs
        if (policy == CachePolicy::none || name == std::string_view("cpu")) request.gpu_bytes = 0;
        if (policy == CachePolicy::none || name == std::string_view("gpu")) request.cpu_bytes = 0;
        if (name == std::string_view("whole")) request.gpu_bytes = datasets.back().description().features.bytes;
        pack_artefact(datasets.back(), path, request).status().or_throw();
      }
    }
  }
  std::string path(bool is_wide, const std::string& name) const {
    return scratch.path((is_wide ? "wide-" : "narrow-") + name + ".ovg");
  }
  Scratch scratch;
  std::vector<Dataset> datasets;
  std::vector<test::Matrix> matrices;
};

const DeviceWorld& device_world() {
  static const DeviceWorld made;
  return made;
}

/// A loader on a played device, and a caller that gives its stream the work of looking at each batch.
struct Trainer {
  Trainer(bool is_wide, const std::string& name, unsigned late, Forgotten forgotten = Forgotten::nothing,
          LoaderOptions options = {})
      : width(is_wide ? 1 : 0),
        device(std::make_shared<PlayedDevice>(late, forgotten)),
        trace(std::move(ArtefactTrace::open(device_world().path(is_wide, name),
                                            *read_manifest(device_world().path(is_wide, name))->trace(Split::train),
                                            true))
                  .value()) {
    options.device = device;
    options.order_seed = 4;
    loader = std::move(Loader::open(device_world().path(is_wide, name), options)).value();
  }
  ~Trainer() { finish(); }

  void finish() { device->finish(Lane::caller); }

  /// Takes up to `most` batches, of which it keeps `held` for a while; their numbers.
  std::vector<int64_t> run(int64_t held, int64_t most = 1 << 20) {
    std::vector<int64_t> seen;
    int64_t kept = 0;
    while (std::ssize(seen) < most) {
      if (changes_stream) loader->use_stream(seen.size() % 2 == 0 ? nullptr : this);
      const auto batch = loader->next();
      EXPECT_TRUE(batch.ok()) << batch.status().message();
      if (!batch.ok() || !batch->has_value()) break;
      seen.push_back((*batch)->number);
      device->give(Lane::caller, [this, b = **batch] { look_at(b); });
      if (++kept > held) {
        loader->release();
        --kept;
      }
    }
    return seen;
  }

  void look_at(const LoadedBatch& batch) {
    const BatchView wanted = trace.trace().batch(batch.number);
    const auto row_bytes = device_world().datasets[width].description().features.row_bytes;
    const auto labels = device_world().datasets[width].labels();
    ++looked;
    bool is_right = std::equal(wanted.inputs.begin(), wanted.inputs.end(), batch.ids.begin(), batch.ids.end());
    for (size_t i = 0; i < wanted.inputs.size() && is_right; ++i) {
      const auto row = device_world().matrices[width].row(wanted.inputs[i]);
      is_right = std::memcmp(batch.rows.data() + i * row.size(), row.data(), row.size()) == 0;
    }
    const size_t edges = wanted.indices.size();
    for (size_t v = 0; v + 1 < wanted.indptr.size(); ++v)
      for (size_t k = wanted.indptr[v]; k < wanted.indptr[v + 1]; ++k)
        is_right = is_right && batch.edges[k] == wanted.indices[k] && batch.edges[edges + k] == static_cast<int64_t>(v);
    for (size_t i = 0; i < batch.classes.size(); ++i)
      is_right = is_right && batch.classes[i] == labels[wanted.inputs[i]];
    is_right = is_right && std::ssize(batch.rows) == std::ssize(wanted.inputs) * row_bytes &&
               std::ssize(batch.edges) == 2 * std::ssize(wanted.indices) &&
               std::ssize(batch.classes) == wanted.num_seeds();
    if (!is_right) ++wrong;
  }

  size_t width;
  std::shared_ptr<PlayedDevice> device;
  ArtefactTrace trace;
  std::unique_ptr<Loader> loader;
  bool changes_stream = false;  // at each batch
  int64_t looked = 0, wrong = 0;
};

TEST(LoaderDevice, DeliversTheDatasetHoweverLateItsLanesAre) {
  for (const bool is_wide : {false, true})
    for (const char* name : {"fixed", "segments", "shuffle", "lru", "none", "deep", "cpu", "gpu", "whole", "disk"})
      for (unsigned late = 0; late <= kAllLate; ++late) {
        Trainer trainer(is_wide, name, late);
        Loader& loader = *trainer.loader;
        const int64_t epochs = late == kAllLate ? 2 : 1;
        for (int64_t epoch = 0; epoch < epochs; ++epoch) {
          loader.start(epoch).or_throw();
          const std::vector<int64_t> seen = trainer.run(late % 3);
          EXPECT_EQ(seen,
                    epoch_sequence(loader.plan().order, loader.plan().num_batches(), 4, static_cast<uint64_t>(epoch)));
          const LoaderStats stats = loader.stats();
          EXPECT_EQ(stats.gpu_rows + stats.cpu_rows + stats.ring_rows,
                    loader.manifest().trace(Split::train)->input_rows);
        }
        trainer.finish();
        EXPECT_EQ(trainer.looked, epochs * loader.num_batches());
        EXPECT_EQ(trainer.wrong, 0) << is_wide << " " << name << " " << late;
      }
}

/// Each batch, each epoch and what follows a loop that was left may be another stream's, where start() or release()
/// came before it was set.
TEST(LoaderDevice, GoesOnOnAnotherStream) {
  for (const char* name : {"fixed", "shuffle", "deep"})
    for (const unsigned late : {0u, 4u, kAllLate}) {
      Trainer trainer(true, name, late);
      Loader& loader = *trainer.loader;
      for (int64_t epoch = 0; epoch < 4; ++epoch) {
        loader.start(epoch).or_throw();
        loader.use_stream(epoch % 2 == 0 ? nullptr : &trainer);
        trainer.changes_stream = epoch < 2;
        if (trainer.changes_stream) {
          EXPECT_EQ(std::ssize(trainer.run(0, epoch == 0 ? 1 << 20 : 5)), epoch == 0 ? loader.num_batches() : 5);
        } else {
          EXPECT_EQ(std::ssize(trainer.run(2, epoch == 2 ? 4 : 1 << 20)), epoch == 2 ? 4 : loader.num_batches());
        }
      }
      trainer.finish();
      EXPECT_EQ(trainer.wrong, 0) << name << " " << late;
    }
}

/// The caller's stream may be busy for longer than a loader waits for its device.
TEST(LoaderDevice, WaitsForACallerThatIsBusy) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  ::setenv("OVERLACE_TIMEOUT_S", "1", 1);
  EXPECT_EXIT(
      {
        Trainer trainer(true, "fixed", kAllLate);
        Loader& loader = *trainer.loader;
        loader.start(0).or_throw();
        trainer.device->hold_caller(true);
        constexpr int64_t kQueued = 2 * LoaderBuffers::kOutputs;
        bool is_right = std::ssize(trainer.run(0, kQueued)) == kQueued;
        for (int i = 0; i < 2; ++i) {
          const base::Status late = loader.next().status();
          std::cerr << late.message() << "\n";
          is_right = is_right && late.code() == Errc::timeout &&
                     late.message().find("the caller's stream is still busy") != std::string::npos;
        }
        trainer.device->hold_caller(false);
        is_right = is_right && std::ssize(trainer.run(0)) == loader.num_batches() - kQueued;
        trainer.finish();
        std::exit(is_right && trainer.wrong == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  ::unsetenv("OVERLACE_TIMEOUT_S");
}

TEST(LoaderDevice, SaysThatWhatItWasGivenIsNotDone) {
  Trainer trainer(true, "fixed", kAllLate);
  Loader& loader = *trainer.loader;
  loader.start(0).or_throw();
  trainer.device->hold_caller(true);
  EXPECT_EQ(std::ssize(trainer.run(0, 5)), 5);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(loader.start(1).code(), Errc::timeout);
  EXPECT_EQ(loader.next().status().code(), Errc::timeout);
  trainer.device->hold_caller(false);
  loader.start(1).or_throw();
  EXPECT_EQ(std::ssize(trainer.run(0)), loader.num_batches());
  trainer.finish();
  EXPECT_EQ(trainer.wrong, 0);
}

/// A stage that is slow, above all the one that brings rows into the CPU's cache, changes nothing.
TEST(LoaderDevice, HoldsWhereAStageIsSlow) {
  for (const Stage slow : {Stage::read, Stage::gather, Stage::admit})
    for (const char* name : {"fixed", "lru", "segments"}) {
      LoaderOptions options;
      options.before = [slow](Stage stage, int64_t item) {
        if (stage == slow && item % 3 != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      };
      Trainer trainer(true, name, 0, Forgotten::nothing, options);
      trainer.loader->start(0).or_throw();
      trainer.run(0);
      trainer.finish();
      EXPECT_EQ(trainer.looked, trainer.loader->num_batches());
      EXPECT_EQ(trainer.wrong, 0) << name << " " << static_cast<int>(slow);
    }
}

TEST(LoaderDevice, OwesEveryWait) {
  for (const Forgotten one : {Forgotten::gather_for_transfer, Forgotten::caller_for_gather,
                              Forgotten::transfer_for_caller, Forgotten::host_for_gather}) {
    int64_t wrong = 0;
    for (unsigned late = 1; late <= kAllLate; ++late) {
      Trainer trainer(true, "fixed", late, one);
      trainer.loader->start(0).or_throw();
      trainer.run(1);
      trainer.finish();
      wrong += trainer.wrong;
    }
    EXPECT_GT(wrong, 0) << static_cast<int>(one);
  }
}

TEST(LoaderDevice, BeginsAgainAfterABreakAndInTheMiddle) {
  for (const char* name : {"fixed", "segments", "shuffle", "deep", "disk"})
    for (const unsigned late : {0u, 4u, kAllLate}) {
      Trainer trainer(true, name, late);
      Loader& loader = *trainer.loader;
      loader.start(5).or_throw();
      const std::vector<int64_t> whole = trainer.run(0);
      for (const int64_t position : {int64_t{1}, int64_t{10}, std::ssize(whole) - 1, std::ssize(whole)}) {
        loader.start(5, position).or_throw();
        const auto end = whole.begin() + std::min(position + 7, std::ssize(whole));
        EXPECT_EQ(trainer.run(2, 7), std::vector<int64_t>(whole.begin() + position, end)) << name << " " << position;
      }
      trainer.finish();
      EXPECT_EQ(trainer.wrong, 0) << name << " " << late;
    }
}

/// What the loop had taken when it was left is still to be gathered, from slots that nobody has written since.
TEST(LoaderDevice, ALoopThatIsLeftAdmitsNothing) {
  for (const char* name : {"fixed", "lru"}) {
    Trainer trainer(true, name, kAllLate);
    for (int64_t before = 0; before < trainer.loader->num_batches(); ++before) {
      trainer.device->reaches = before;
      trainer.loader->start(0).or_throw();
      EXPECT_EQ(std::ssize(trainer.run(0, before + 1)), before + 1);
      trainer.loader->start(0, trainer.loader->num_batches()).or_throw();
    }
    trainer.finish();
    EXPECT_EQ(trainer.wrong, 0) << name;
  }
}

TEST(LoaderDevice, SaysWhatFailedAndCanBeginAgain) {
  Trainer trainer(false, "segments", kAllLate);
  trainer.device->gathers = 4;
  trainer.loader->start(0).or_throw();
  base::Status status;
  int64_t given = 0;
  for (; status.ok() && given < 20; ++given) {
    const auto batch = trainer.loader->next();
    status = batch.status();
    trainer.loader->release();
  }
  EXPECT_EQ(status.message(), "gather: a device that fails");
  EXPECT_LE(given, 5);
  trainer.device->gathers = 1 << 20;
  trainer.loader->start(0).or_throw();
  EXPECT_EQ(std::ssize(trainer.run(0)), trainer.loader->num_batches());
  trainer.finish();
  EXPECT_EQ(trainer.wrong, 0);
}

TEST(LoaderDevice, RefusesWhatDoesNotFit) {
  const auto device = std::make_shared<PlayedDevice>(0);
  device->room = 1000;
  const base::Status little = Loader::open(device_world().path(false, "fixed"), {.device = device}).status();
  EXPECT_EQ(little.code(), Errc::out_of_memory);
  EXPECT_NE(little.message().find("of the GPU: its cache 10200, ring"), std::string::npos) << little.message();
  EXPECT_NE(
      little.message().find("10200 bytes are not to be had. Pack again with smaller caches, which overlace gnn plan "),
      std::string::npos)
      << little.message();
#ifndef OVERLACE_HAS_CUDA
  EXPECT_EQ(open_gpu(1).status().message(),
            "a loader on GPU 1: this build has no CUDA (OVERLACE_CUDA=OFF, or nvcc was not found), wanted one with it");
#endif
}

TEST(LoaderDevice, TakesTheMemoryThatWasPredicted) {
  for (const bool is_wide : {false, true})
    for (const char* name : {"fixed", "segments", "disk", "gpu"}) {
      const Trainer trainer(is_wide, name, 0);
      const PackPlan& plan = trainer.loader->plan();
      const Dataset& dataset = device_world().datasets[is_wide ? 1 : 0];
      LevelOptions options;
      options.gpu_rows = std::ssize(plan.start.gpu);
      options.cpu_rows = std::ssize(plan.start.cpu);
      options.order = plan.order;
      options.depth = plan.depth;
      options.row_bytes = plan.row_bytes;
      if (name == std::string_view("disk"))
        options.disk.max_rows = dataset.description().features.bytes * 2 / 3 / plan.row_bytes;
      const Prediction predicted = std::move(predict(trainer.trace.trace(), options)).value();
      EXPECT_EQ(trainer.loader->bytes().device(), predicted.memory.gpu()) << name;
      EXPECT_EQ(trainer.loader->bytes().host(), predicted.memory.cpu()) << name;
      const auto alone = std::move(Loader::open(device_world().path(is_wide, name))).value();
      EXPECT_EQ(alone->bytes().host(), predicted.memory.alone()) << name;
    }
}

TEST(LoaderDevice, KeepsTheRowsOfItsCacheOffTheHost) {
  const Trainer there(true, "fixed", 0);
  const auto here = std::move(Loader::open(device_world().path(true, "fixed"))).value();
  const LoaderBytes& on_device = there.loader->bytes();
  EXPECT_EQ(on_device.gpu_cache, here->bytes().gpu_cache);
  EXPECT_GT(on_device.device(), on_device.gpu_cache);
  EXPECT_EQ(here->bytes().device(), 0);
  EXPECT_LE(on_device.host(), here->bytes().host() - here->bytes().gpu_cache);
  EXPECT_EQ(std::ssize(there.loader->outputs()), on_device.device_outputs);
}

}  // namespace
}  // namespace overlace::gnn
