// What comes from outside and is no good: files of other formats, files and directories that may not be read or
// written, disks that go while somebody trains.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

#include "src/base/crc32c.h"
#include "src/base/file.h"
#include "src/gnn/dataset/import.h"
#include "src/gnn/pack/files.h"
#include "src/gnn/pipeline/loader.h"
#include "src/gnn/store/plan_file.h"
#include "tests/unit/gnn/support/artefacts.h"

namespace overlace::gnn {
namespace {

namespace fs = std::filesystem;

class Refusal : public ::testing::Test {
 protected:
  Refusal() : dataset_(test::small_dataset(scratch_.path("data"), 1 << 9)) {
    sample_artefact(dataset_, artefact(), test::small_sample()).status().or_throw();
    pack_artefact(dataset_, artefact(), test::small_pack(dataset_)).status().or_throw();
  }
  std::string artefact() const { return scratch_.path("a.ovg"); }
  std::string packs() const { return PackFiles::path(artefact(), PackFile::packs, "fixed"); }
  /// Without the scratch folder's name.
  std::string said(const base::Status& status) const {
    std::string text = status.message();
    for (size_t at = 0; (at = text.find(scratch_.path())) != std::string::npos;)
      text.replace(at, scratch_.path().size(), "S");
    return text;
  }
  Scratch scratch_;
  Dataset dataset_;
};

/// Each format has its number; one that this library does not read is named, with the file and both numbers.
TEST_F(Refusal, FilesOfAnotherFormatAreVersionMismatch) {
  const auto opened = [&](const std::string& file, const std::function<base::Status()>& open) {
    const std::string path = scratch_.path(file), good = *base::read_file(path);
    std::string other = good;
    if (file.ends_with(".json")) {
      const std::string key = "\"overlace_gnn\": 1";
      other.replace(other.find(key), key.size(), "\"overlace_gnn\": 7");
    } else {
      other[8] = 7;  // behind the magic
    }
    base::write_file(path, other).or_throw();
    const base::Status status = open();
    EXPECT_EQ(status.code(), Errc::version_mismatch) << file << ": " << status.message();
    base::write_file(path, good).or_throw();
    EXPECT_TRUE(open().ok()) << file;
    return said(status);
  };
  const auto load = [&] { return Loader::open(artefact()).status(); };
  EXPECT_EQ(opened("data/dataset.json", [&] { return Dataset::open(dataset_.directory()).status(); }),
            "S/data/dataset.json: overlace_gnn is 7, wanted 1");
  EXPECT_EQ(opened("a.ovg/manifest.json", load), "S/a.ovg/manifest.json: overlace_gnn is 7, wanted 1");
  EXPECT_EQ(opened("a.ovg/trace-train-0.ovt", [&] { return verify_artefact(artefact(), nullptr).status(); }),
            "S/a.ovg/trace-train-0.ovt: format 7 of traces, wanted 1");
  EXPECT_EQ(opened("a.ovg/plan-fixed.ovp", load), "S/a.ovg/plan-fixed.ovp: format 7, wanted 1");
}

TEST_F(Refusal, AnExtentOfAnotherFormatIsVersionMismatch) {
  std::string bytes = *base::read_file(packs());
  bytes[8] = 7;
  constexpr size_t kSummed = static_cast<size_t>(kExtentPage) - sizeof(uint32_t);  // its header was written like that
  const uint32_t sum = base::crc32c(std::as_bytes(std::span(bytes.data(), kSummed)));
  std::memcpy(bytes.data() + kSummed, &sum, sizeof(sum));
  base::write_file(packs(), bytes).or_throw();
  const auto loader = std::move(Loader::open(artefact())).value();
  loader->start(0).or_throw();
  const base::Status status = loader->next().status();
  EXPECT_EQ(status.code(), Errc::version_mismatch);
  EXPECT_EQ(said(status), "S/a.ovg/packs-fixed.ovk: extent 0 has format 7, wanted 1");
}

/// As a user who owns none of the files; what it ends with.
class Nobody {
 public:
  /// False where the system does not let this process become somebody else.
  bool run(const std::function<base::Status()>& work) {
    int ends[2];
    if (::pipe(ends) != 0) return false;
    const pid_t child = ::fork();
    if (child == 0) {
      constexpr uid_t kNobody = 65534;
      if (::geteuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) ::_exit(2);
      const base::Status status = work();
      const std::string text = status.message();
      const auto word = static_cast<unsigned char>(status.code());
      const bool is_written = ::write(ends[1], &word, 1) == 1 &&
                              ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
      ::_exit(is_written ? 0 : 1);
    }
    ::close(ends[1]);
    std::string text;
    char part[512];
    for (ssize_t n = 0; (n = ::read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(n));
    ::close(ends[0]);
    int status = 0;
    if (::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0 || text.empty())
      return false;
    code = static_cast<Errc>(static_cast<unsigned char>(text[0]));
    message = text.substr(1);
    return true;
  }
  Errc code = Errc::internal;
  std::string message;
};

TEST_F(Refusal, WhatMayNotBeReadOrWrittenIsIoWithTheReason) {
  fs::permissions(scratch_.path(), fs::perms(0755));
  fs::permissions(scratch_.path("data"), fs::perms(0755));
  fs::permissions(artefact(), fs::perms(0755));
  Nobody nobody;
  if (!nobody.run([&] { return Loader::open(artefact()).status(); })) GTEST_SKIP() << "no other user here";
  EXPECT_EQ(nobody.message, "");  // reading is allowed
  const auto refused = [&](const std::string& what, const std::function<base::Status()>& work) {
    EXPECT_TRUE(nobody.run(work));
    EXPECT_EQ(nobody.code, Errc::io) << what << ": " << nobody.message;
    EXPECT_NE(nobody.message.find("Permission denied"), std::string::npos) << what << ": " << nobody.message;
    EXPECT_NE(nobody.message.find(scratch_.path(what)), std::string::npos) << what << ": " << nobody.message;
  };
  const auto hidden = [&](const std::string& file, const std::function<base::Status()>& work) {
    fs::permissions(scratch_.path(file), fs::perms::none);
    refused(file, work);
    fs::permissions(scratch_.path(file), fs::perms(0644));
  };
  const auto load = [&] { return Loader::open(artefact()).status(); };
  const auto open = [&] { return Dataset::open(dataset_.directory()).status(); };
  for (const char* file : {"data/dataset.json", "data/features.npy", "data/indptr.npy", "data/train.npy"})
    hidden(file, open);
  for (const char* file :
       {"a.ovg/manifest.json", "a.ovg/plan-fixed.ovp", "a.ovg/packs-fixed.ovk", "a.ovg/hot-fixed.ovh"})
    hidden(file, load);
  hidden("a.ovg/trace-train-0.ovt", [&] { return verify_artefact(artefact(), nullptr).status(); });
  hidden("data/features.npy", [&] { return describe(dataset_.directory()).status(); });

  // Directories that belong to somebody else.
  fs::permissions(scratch_.path("data"), fs::perms(0555));
  fs::permissions(artefact(), fs::perms(0555));
  fs::permissions(artefact() + "/lock", fs::perms(0444));
  const auto before = test::files_of(artefact());
  SampleRequest more = test::small_sample();
  more.epochs = 2;
  refused("a.ovg", [&] { return sample_artefact(dataset_, artefact(), more).status(); });
  refused("a.ovg", [&] {
    return pack_artefact(dataset_, artefact(), test::small_pack(dataset_, {BatchOrder::shuffle, 0})).status();
  });
  refused("data", [&] { return sample_artefact(dataset_, scratch_.path("data/b.ovg"), more).status(); });
  refused("data", [&] { return describe(dataset_.directory()).status(); });
  refused("data/g", [&] { return generate({.num_vertices = 64}, scratch_.path("data/g")).status(); });
  EXPECT_EQ(test::files_of(artefact()), before);
  EXPECT_TRUE(Dataset::open(dataset_.directory()).ok());
  for (const std::string& directory : {scratch_.path("data"), artefact()}) fs::permissions(directory, fs::perms(0755));
}

/// A disk whose device is not there any more, from a moment on and until it comes back.
class GoingQueue final : public io::Queue {
 public:
  GoingQueue(std::unique_ptr<io::Queue> inner, const std::atomic<bool>* gone) : inner_(std::move(inner)), gone_(gone) {}
  const char* name() const override { return inner_->name(); }
  int capacity() const override { return inner_->capacity(); }
  void push(const io::QueueRequest& request) override { inner_->push(request); }
  base::Status submit() override { return inner_->submit(); }
  base::Result<size_t> wait(std::span<io::QueueResult> results, int64_t timeout_ms) override {
    const auto count = inner_->wait(results, timeout_ms);
    if (count.ok() && *gone_)
      for (io::QueueResult& result : results.first(*count)) result.result = -ENODEV;
    return count;
  }

 private:
  std::unique_ptr<io::Queue> inner_;
  const std::atomic<bool>* gone_;
};

/// Numbers of the batches that come until the loader fails, whose rows are those of the dataset.
base::Status until_it_fails(Loader* loader, const test::Matrix& matrix, int64_t* batches) {
  while (true) {
    const auto batch = loader->next();
    if (!batch.ok() || !batch->has_value()) return batch.status();
    size_t at = 0;
    for (const uint32_t vertex : (*batch)->blocks.inputs) {
      const auto row = matrix.row(vertex);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), (*batch)->rows.subspan(at, row.size()).begin()));
      at += row.size();
    }
    ++*batches;
    loader->release();
  }
}

TEST_F(Refusal, ADiskThatGoesWhileSomebodyTrainsEndsTheEpochAndNothingElse) {
  const test::Matrix matrix(dataset_);
  for (const char* engine : {"pread", "auto"}) {
    std::atomic<bool> gone = false;
    LoaderOptions options;
    options.io.engine = engine;
    options.io.wrap = [&](std::unique_ptr<io::Queue> inner) {
      return std::make_unique<GoingQueue>(std::move(inner), &gone);
    };
    const auto loader = std::move(Loader::open(artefact(), options)).value();
    loader->start(0).or_throw();
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(loader->next().value().has_value());
      loader->release();
    }
    gone = true;
    int64_t batches = 0;
    const base::Status failed = until_it_fails(loader.get(), matrix, &batches);
    EXPECT_EQ(failed.code(), Errc::io) << failed.message();
    EXPECT_NE(failed.message().find(packs()), std::string::npos) << failed.message();
    EXPECT_NE(failed.message().find("No such device"), std::string::npos) << failed.message();
    EXPECT_LT(batches, loader->num_batches() - 2);
    EXPECT_EQ(loader->next().status().message(), failed.message());
    const base::Status again = loader->start(0);  // the caches are to be read anew
    EXPECT_EQ(again.code(), Errc::io) << again.message();
    gone = false;
    loader->start(0).or_throw();
    batches = 0;
    EXPECT_TRUE(until_it_fails(loader.get(), matrix, &batches).ok());
    EXPECT_EQ(batches, loader->num_batches());
  }
}

TEST_F(Refusal, PacksThatAreCutWhileSomebodyTrainsAreNamed) {
  const test::Matrix matrix(dataset_);
  const auto loader = std::move(Loader::open(artefact())).value();
  const ExtentPlace place = loader->plan().extents[5];
  fs::resize_file(packs(), static_cast<uintmax_t>(place.offset + 4096));
  loader->start(0).or_throw();
  int64_t batches = 0;
  const base::Status failed = until_it_fails(loader.get(), matrix, &batches);
  EXPECT_EQ(failed.code(), Errc::io) << failed.message();
  EXPECT_NE(said(failed).find("S/a.ovg/packs-fixed.ovk"), std::string::npos) << failed.message();
  EXPECT_LE(batches, 5);
  EXPECT_EQ(Loader::open(artefact()).status().code(), Errc::corrupt);
}

/// The features changed behind the artefact's back: whoever needs both refuses, with the file and both digests.
TEST_F(Refusal, ADatasetThatChangedAfterPackingIsStale) {
  const Description before = dataset_.description();
  std::string rows = *base::read_file(dataset_.feature_path());
  rows.back() = static_cast<char>(rows.back() ^ 1);
  base::write_file(dataset_.feature_path(), rows).or_throw();
  EXPECT_EQ(Dataset::open(dataset_.directory()).status().code(), Errc::stale);
  const Description after = describe(dataset_.directory())->description;
  EXPECT_NE(after.id, before.id);
  const Dataset changed = std::move(Dataset::open(dataset_.directory())).value();
  for (const base::Status& status :
       {pack_artefact(changed, artefact(), test::small_pack(changed, {BatchOrder::shuffle, 0})).status(),
        sample_artefact(changed, artefact(), test::small_sample()).status(),
        verify_artefact(artefact(), &changed).status()}) {
    EXPECT_EQ(status.code(), Errc::stale) << status.message();
    EXPECT_NE(status.message().find(before.id), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(after.id), std::string::npos) << status.message();
  }
  EXPECT_TRUE(verify_artefact(artefact(), nullptr).ok());  // it is whole, and trains
}

}  // namespace
}  // namespace overlace::gnn
