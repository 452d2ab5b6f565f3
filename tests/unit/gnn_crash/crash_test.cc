// Sampling and packing, killed at any change of a file and on a disk that is full from any change on: what is left is
// whole or not named, and a later run makes the artefact that an undisturbed one makes, bit by bit.
// OVERLACE_TEST_KILLS and OVERLACE_TEST_FULL_DISKS say how many points are drawn; `all` of the latter takes each.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "src/base/file.h"
#include "tests/unit/gnn/support/artefacts.h"
#include "tests/unit/gnn_crash/system_calls.h"
#include "tests/unit/io/test_size.h"

namespace overlace::gnn {
namespace {

namespace fs = std::filesystem;
using test::Fate;
using test::Step;

/// Requests of io_uring pass the C library by; those of threads do not.
const bool kThreadsRead = ::setenv("OVERLACE_IO", "pread", 1) == 0;

constexpr int kFull = 7, kOther = 8;  // exit codes of a child

/// All files but the lock, which no two runs share.
std::map<std::string, std::string> files_of(const std::string& directory) {
  std::map<std::string, std::string> out;
  if (!fs::exists(directory)) return out;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename() != "lock") out[entry.path().filename()] = *base::read_file(entry.path());
  return out;
}

class Crash : public ::testing::Test {
 protected:
  Crash() : dataset_(test::small_dataset(scratch_.path("data"), 1 << 9)) {
    EXPECT_TRUE(kThreadsRead);
    make(scratch_.path("whole")).or_throw();
    whole_ = files_of(scratch_.path("whole"));
    EXPECT_FALSE(whole_.at("dcache-segments.ovd").empty());
    steps_ = test::with_system_calls(0, Fate::die, false, [&] { make(scratch_.path("counted")).or_throw(); });
    EXPECT_EQ(files_of(scratch_.path("counted")), whole_);
    EXPECT_GT(steps_, 100);
  }

  /// Two sampled splits, packed in several passes with every level.
  base::Status make(const std::string& directory) const {
    OVERLACE_TRY(sample_artefact(dataset_, directory, test::small_sample()).status());
    ArtefactPackRequest request = test::small_pack(dataset_, {BatchOrder::segments, 5});
    request.memory_bytes /= 2;
    request.disk_bytes = dataset_.description().features.bytes * 3 / 5;
    return pack_artefact(dataset_, directory, request).status();
  }

  /// Exit code of a process to which it happens, or -1 where it was killed.
  int run(int64_t at, Fate fate, const std::string& directory, const std::function<base::Status()>& work) const {
    const pid_t child = ::fork();
    EXPECT_GE(child, 0);
    if (child == 0) {
      int code = 0;
      test::with_system_calls(at, fate, false, [&] {
        const base::Status status = work();
        if (status.ok()) return;
        code =
            status.code() == Errc::io && status.message().find("No space left") != std::string::npos ? kFull : kOther;
        if (code == kOther) std::fprintf(stderr, "%s: %s\n", directory.c_str(), status.message().c_str());
      });
      ::_exit(code);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    return -1;
  }

  /// What the manifest names is whole, and another run makes the rest.
  void expect_resumes(const std::string& directory, const std::string& what) const {
    if (fs::exists(directory + "/manifest.json")) {
      const base::Status named = verify_artefact(directory, &dataset_).status();
      EXPECT_TRUE(named.ok()) << what << ": " << named.message();
    }
    const base::Status status = make(directory);
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
    const auto again = files_of(directory);
    for (const auto& [name, bytes] : whole_) {
      ASSERT_TRUE(again.contains(name)) << what << ": " << name;
      ASSERT_TRUE(again.at(name) == bytes) << what << ": " << name;
    }
    for (const auto& [name, bytes] : again) ASSERT_TRUE(whole_.contains(name)) << what << " left " << name;
  }

  Scratch scratch_;
  Dataset dataset_;
  std::map<std::string, std::string> whole_;
  int64_t steps_ = 0;
};

/// Up to three times in a row, so that one that resumes is killed, too.
TEST_F(Crash, KilledAtAnyChangeOfAFileAndResumedIsTheSame) {
  const int64_t kills = io::test_size("OVERLACE_TEST_KILLS", 60);
  std::mt19937_64 random(std::random_device{}());
  int64_t killed = 0;
  for (int round = 0; killed < kills; ++round) {
    const std::string directory = scratch_.path("killed");
    fs::remove_all(directory);
    std::string what = "killed at";
    for (uint64_t times = 1 + random() % 3; times > 0; --times) {
      // Also at steps that only a run that resumes does not reach.
      const auto at = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(steps_));
      const Fate fate = random() % 3 == 0 ? Fate::tear : Fate::die;
      what += base::format(" {}{}", at, fate == Fate::tear ? " torn" : "");
      const int code = run(at, fate, directory, [&] { return make(directory); });
      ASSERT_TRUE(code == -1 || code == 0) << what << ": exit code " << code;
      killed += code == -1;
    }
    expect_resumes(directory, what);
    if (HasFailure()) return;
  }
  std::printf("%lld kills among %lld changes\n", static_cast<long long>(killed), static_cast<long long>(steps_));
}

/// A run that is killed between two names packs these files anew; what the journal says of the old ones is no use to
/// one that is killed while it does.
TEST_F(Crash, KilledWhileFilesGetTheirNamesAndAgainWhileTheyAreMadeAnew) {
  test::with_system_calls(0, Fate::die, true, [&] { make(scratch_.path("logged")).or_throw(); });
  std::vector<int64_t> named;  // calls behind a rename of packs
  for (size_t i = 0; i < test::system_calls.log.size(); ++i) {
    const test::Call& call = test::system_calls.log[i];
    const std::string end = fs::path(call.path).extension();
    if (call.step == Step::rename && (end == ".ovk" || end == ".ovd" || end == ".ovh"))
      named.push_back(static_cast<int64_t>(i) + 2);
  }
  ASSERT_EQ(named.size(), 6u);
  for (const int64_t first : named) {
    const int64_t again = first > named[2] ? named[5] - named[2] : named[2];  // calls of a run that packs one split
    for (const int64_t part : {1, 3, 5}) {
      const std::string directory = scratch_.path("twice"), what = base::format("killed at {}, {}", first, part);
      fs::remove_all(directory);
      ASSERT_EQ(run(first, Fate::die, directory, [&] { return make(directory); }), -1) << what;
      const int code = run(again * part / 10, Fate::die, directory, [&] { return make(directory); });
      ASSERT_TRUE(code == -1 || code == 0) << what << ": " << code;
      expect_resumes(directory, what);
      if (HasFailure()) return;
    }
  }
}

TEST_F(Crash, ADiskThatIsFullFromAnyChangeOnIsNamedAndWhatIsDoneIsKept) {
  const int64_t points = io::test_size("OVERLACE_TEST_FULL_DISKS", 40, steps_);
  std::mt19937_64 random(std::random_device{}());
  std::set<int64_t> steps;
  while (std::ssize(steps) < std::min(points, steps_))
    steps.insert(points >= steps_ ? std::ssize(steps) + 1
                                  : 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(steps_)));
  int64_t refused = 0;
  for (const int64_t at : steps) {
    const std::string directory = scratch_.path("full");
    fs::remove_all(directory);
    const std::string what = base::format("full from {}", at);
    const int code = run(at, Fate::full, directory, [&] { return make(directory); });
    ASSERT_TRUE(code == kFull || (code == 0 && at + 3 > steps_)) << what << ": exit code " << code;
    refused += code == kFull;
    expect_resumes(directory, what);
    if (HasFailure()) return;
  }
  std::printf("%lld full disks among %lld changes\n", static_cast<long long>(refused), static_cast<long long>(steps_));
  EXPECT_GT(refused, 0);
}

/// A dataset is there once its description is; without it, it is made anew.
TEST_F(Crash, ADatasetThatWasNotFinishedIsNoDataset) {
  const auto before = files_of(scratch_.path("data"));
  const auto make_data = [&](const std::string& directory) {
    GenerateOptions made;
    made.num_vertices = 1 << 9;
    made.dim = 25;
    made.threads = 1;
    return generate(made, directory).status();
  };
  const int64_t steps =
      test::with_system_calls(0, Fate::die, false, [&] { make_data(scratch_.path("counted_data")).or_throw(); });
  for (int64_t at = 1; at <= steps; ++at) {
    for (const Fate fate : {Fate::die, Fate::tear, Fate::full}) {
      const std::string directory = scratch_.path("broken_data"), what = base::format("{} of {}", at, steps);
      fs::remove_all(directory);
      const int code = run(at, fate, directory, [&] { return make_data(directory); });
      ASSERT_TRUE(code == (fate == Fate::full ? kFull : -1) || (code == 0 && at + 2 > steps)) << what << ": " << code;
      if (fs::exists(directory + "/dataset.json")) {
        ASSERT_TRUE(Dataset::open(directory).ok()) << what;
        for (const auto& [name, bytes] : before) ASSERT_TRUE(files_of(directory).at(name) == bytes) << what << name;
        continue;
      }
      EXPECT_EQ(Dataset::open(directory).status().code(), Errc::invalid_argument) << what;
      make_data(directory).or_throw();
      const auto again = files_of(directory);
      for (const auto& [name, bytes] : before) ASSERT_TRUE(again.at(name) == bytes) << what << ": " << name;
    }
  }
}

/// A file has its name, and a record stands in the journal, only once what it speaks of lies on the disk.
TEST_F(Crash, NothingIsNamedBeforeItLiesOnTheDisk) {
  const std::string directory = scratch_.path("logged");
  test::with_system_calls(0, Fate::die, true, [&] { make(directory).or_throw(); });
  const std::vector<test::Call> log = std::move(test::system_calls.log);
  std::set<std::string> dirty;  // files with bytes that may be lost, and names that may be
  std::set<std::string> new_names;
  int renames = 0, records = 0;
  for (const test::Call& call : log) {
    const std::string name = fs::path(call.path).filename().string();
    const bool is_journal = name == "journal.log";
    switch (call.step) {
      case Step::open:
        break;
      case Step::write:
      case Step::allocate:
      case Step::resize:
        if (is_journal && call.step == Step::write) {
          for (const std::string& other : dirty)
            EXPECT_TRUE(other == name || other == "lock") << other << " of a record";
          ++records;
        } else if (name != "lock") {
          EXPECT_FALSE(dirty.contains("journal.log")) << name << " is written before the record of the last pass lasts";
        }
        if (name != "lock") dirty.insert(name);
        break;
      case Step::sync:
        if (fs::path(call.path) == fs::path(directory))
          new_names.clear();
        else
          dirty.erase(name);
        break;
      case Step::rename: {
        for (const std::string& other : dirty)
          EXPECT_FALSE(other == name + ".part" || other.starts_with(name + ".tmp.")) << other;
        // What the manifest names lies there with its name already.
        if (name == "manifest.json") {
          EXPECT_TRUE(dirty.empty()) << *dirty.begin();
          EXPECT_TRUE(new_names.empty()) << *new_names.begin();
        }
        new_names.insert(name);
        ++renames;
        break;
      }
    }
  }
  EXPECT_TRUE(new_names.empty());
  EXPECT_GE(renames, 14);  // two traces, four files of two packs each, manifests
  EXPECT_GE(records, 8);
}

}  // namespace
}  // namespace overlace::gnn
