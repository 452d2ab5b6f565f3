// Artefacts: packed, killed and resumed, locked, verified, damaged, stale.
#include "src/gnn/store/artefact.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>

#include "src/base/file.h"
#include "src/gnn/store/journal.h"
#include "tests/unit/gnn/support/artefacts.h"

namespace overlace::gnn {
namespace {

namespace fs = std::filesystem;

void flip(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char was = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(was ^ 0x10));
}

class Artefact : public ::testing::Test {
 protected:
  Artefact() : dataset_(test::small_dataset(scratch_.path("data"))) {}
  void sample(const std::string& name) {
    sample_artefact(dataset_, scratch_.path(name), test::small_sample()).status().or_throw();
  }
  ArtefactPackRequest request(bool has_disk_cache = true) const {
    ArtefactPackRequest out = test::small_pack(dataset_, {BatchOrder::segments, 9});
    out.disk_bytes = has_disk_cache ? dataset_.description().features.bytes * 2 / 3 : 0;
    return out;
  }
  Scratch scratch_;
  Dataset dataset_;
};

TEST_F(Artefact, IsTheSameHoweverOftenThePackerIsKilled) {
  sample("whole");
  fs::copy(scratch_.path("whole"), scratch_.path("killed"));
  pack_artefact(dataset_, scratch_.path("whole"), request()).status().or_throw();
  int killed = 0;
  for (int delay_us = 200; delay_us < 3'000'000; delay_us += delay_us / 4) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(pack_artefact(dataset_, scratch_.path("killed"), request()).ok() ? 0 : 1);
    ::usleep(static_cast<useconds_t>(delay_us));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ++killed;
  }
  EXPECT_GE(killed, 3);
  pack_artefact(dataset_, scratch_.path("killed"), request()).status().or_throw();
  const auto whole = test::files_of(scratch_.path("whole")), again = test::files_of(scratch_.path("killed"));
  EXPECT_FALSE(whole.at("dcache-segments.ovd").empty());
  EXPECT_EQ(whole.size(), 11u);  // a manifest, two traces, four files for each of them
  ASSERT_EQ(again.size(), whole.size());
  for (const auto& [name, bytes] : whole) EXPECT_TRUE(again.at(name) == bytes) << name;
}

TEST_F(Artefact, GoesOnBehindTheLastPass) {
  sample("whole");
  fs::copy(scratch_.path("whole"), scratch_.path("ended"));
  pack_artefact(dataset_, scratch_.path("whole"), request()).status().or_throw();
  for (int ends_after = 1; ends_after <= 4; ++ends_after) {
    ArtefactPackRequest ending = request();
    int passes = 0;
    std::vector<double> shares;
    ending.progress = [&](std::string_view what, double share) {
      if (what != "pack segments") return;
      shares.push_back(share);
      if (++passes == ends_after) throw std::runtime_error("enough");
    };
    try {
      pack_artefact(dataset_, scratch_.path("ended"), ending).status().or_throw();
    } catch (const std::runtime_error&) {
    }
    // What an earlier run has done is not done again.
    if (ends_after > 1 && !shares.empty()) {
      EXPECT_GT(shares.front(), 0.3);
    }
  }
  pack_artefact(dataset_, scratch_.path("ended"), request()).status().or_throw();
  EXPECT_EQ(test::files_of(scratch_.path("ended")), test::files_of(scratch_.path("whole")));
}

/// Caches of a split begin as those of its order's train packs, whatever was packed in between.
TEST_F(Artefact, IsVerifiedWhereASplitCameBehindPacksOfAnotherOrder) {
  SampleRequest train = test::small_sample();
  train.splits = {Split::train};
  sample_artefact(dataset_, scratch_.path("a"), train).status().or_throw();
  pack_artefact(dataset_, scratch_.path("a"), request()).status().or_throw();
  const ArtefactPackRequest fixed = test::small_pack(dataset_, {BatchOrder::fixed, 0});
  pack_artefact(dataset_, scratch_.path("a"), fixed).status().or_throw();
  sample("a");  // the valid split, too
  const Manifest all = *pack_artefact(dataset_, scratch_.path("a"), request());
  ASSERT_EQ(all.packs.size(), 3u);
  EXPECT_EQ(all.packs[1].name, "fixed");
  EXPECT_EQ(all.packs[2].name, "segments-valid");
  const auto report = verify_artefact(scratch_.path("a"), &dataset_);
  EXPECT_TRUE(report.ok()) << report.status().message();
}

TEST_F(Artefact, KeepsWhatIsThereAndTakesAnotherOrder) {
  sample("a");
  ArtefactPackRequest dry = request(false);
  dry.is_dry = true;
  const auto sampled = test::files_of(scratch_.path("a"));
  const Manifest counted = *pack_artefact(dataset_, scratch_.path("a"), dry);
  EXPECT_EQ(test::files_of(scratch_.path("a")), sampled);
  const Manifest first = *pack_artefact(dataset_, scratch_.path("a"), request(false));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(counted.packs[i].bytes_read, first.packs[i].bytes_read);
    EXPECT_EQ(counted.packs[i].packs_bytes,
              static_cast<int64_t>(fs::file_size(scratch_.path("a/packs-" + first.packs[i].name + ".ovk"))));
  }
  const auto before = test::files_of(scratch_.path("a"));
  EXPECT_EQ(manifest_json(*pack_artefact(dataset_, scratch_.path("a"), request(false))), manifest_json(first));
  EXPECT_EQ(test::files_of(scratch_.path("a")), before);
  const Manifest both =
      *pack_artefact(dataset_, scratch_.path("a"), test::small_pack(dataset_, {BatchOrder::fixed, 0}));
  ASSERT_EQ(both.packs.size(), 4u);
  EXPECT_NE(both.pack("segments-valid"), nullptr);
  EXPECT_NE(both.pack("fixed"), nullptr);
  EXPECT_EQ(parse_manifest(manifest_json(both), "m")->packs[2].bytes_read, both.packs[2].bytes_read);
  const VerifyReport report = *verify_artefact(scratch_.path("a"), &dataset_);
  EXPECT_EQ(report.files, 18);
  // Other samples want another directory.
  SampleRequest other = test::small_sample();
  other.sampler.seed = 3;
  EXPECT_EQ(sample_artefact(dataset_, scratch_.path("a"), other).status().code(), Errc::invalid_argument);
}

TEST_F(Artefact, IsChangedByOneProcessAtATime) {
  sample("a");
  int ready[2], go[2];
  ASSERT_EQ(::pipe(ready) + ::pipe(go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = ArtefactLock::take(scratch_.path("a"));
    char byte = lock.ok() ? 'y' : 'n';
    if (::write(ready[1], &byte, 1) == 1 && ::read(go[0], &byte, 1) == 1) ::_exit(0);
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  const base::Status status = pack_artefact(dataset_, scratch_.path("a"), request()).status();
  EXPECT_EQ(status.code(), Errc::io);
  EXPECT_EQ(status.message(),
            base::format("{}: process {} is changing this artefact", scratch_.path("a"), static_cast<int>(child)));
  ASSERT_EQ(::write(go[1], &byte, 1), 1);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(pack_artefact(dataset_, scratch_.path("a"), request()).ok());
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
}

TEST_F(Artefact, VerifyFindsDamageInEveryFile) {
  sample("a");
  const Manifest manifest = *pack_artefact(dataset_, scratch_.path("a"), request());
  EXPECT_GT(manifest.packs[0].disk_cache_bytes, 0);
  ASSERT_TRUE(verify_artefact(scratch_.path("a"), &dataset_).ok());
  for (const auto& [name, bytes] : test::files_of(scratch_.path("a"))) {
    if (name == "manifest.json" || bytes.empty()) continue;
    const std::string path = scratch_.path("a/" + name);
    // The first byte of a file and one of its last row or table; padding behind rows is not checked.
    for (const int64_t at : {int64_t{0}, std::ssize(bytes) / 2 / 4096 * 4096}) {
      flip(path, at);
      const base::Status status = verify_artefact(scratch_.path("a"), nullptr).status();
      const bool is_padding = status.ok();
      const base::Status deep = verify_artefact(scratch_.path("a"), &dataset_).status();
      EXPECT_FALSE(deep.ok()) << name << " " << at;
      EXPECT_FALSE(at == 0 && is_padding) << name;
      EXPECT_NE(deep.message().find(name), std::string::npos) << deep.message();
      flip(path, at);
    }
    fs::resize_file(path, bytes.size() - 1);
    EXPECT_EQ(verify_artefact(scratch_.path("a"), nullptr).status().message(),
              base::format("{}: {} bytes, wanted {}", path, bytes.size() - 1, bytes.size()));
    std::ofstream(path, std::ios::binary | std::ios::app).put(bytes.back());
  }
  EXPECT_TRUE(verify_artefact(scratch_.path("a"), &dataset_).ok());
  const Dataset other = test::small_dataset(scratch_.path("other"), 1 << 11, 25, 2);
  EXPECT_EQ(verify_artefact(scratch_.path("a"), &other).status().code(), Errc::stale);
}

TEST_F(Artefact, RefusesBeforeTheFirstByte) {
  EXPECT_EQ(pack_artefact(dataset_, scratch_.path("none"), request()).status().code(), Errc::invalid_argument);
  sample("a");
  ArtefactPackRequest bad = request();
  bad.disk_bytes = 4096;
  const auto before = test::files_of(scratch_.path("a"));
  EXPECT_EQ(pack_artefact(dataset_, scratch_.path("a"), bad).status().code(), Errc::invalid_argument);
  EXPECT_EQ(test::files_of(scratch_.path("a")), before);
}

TEST(Journal, DropsATornRecordAndGoesOn) {
  const Scratch scratch;
  const std::array<uint8_t, 16> digest{1, 2}, other{3};
  const std::vector<std::byte> payload(100, std::byte{7});
  {
    const auto journal = std::move(Journal::open(scratch.path("j"), digest)).value();
    for (const uint32_t kind : {1u, 2u, 3u}) journal->append(kind, payload).or_throw();
  }
  const std::string whole = *base::read_file(scratch.path("j"));
  for (size_t size = 0; size <= whole.size(); ++size) {
    const JournalContent content = parse_journal(std::as_bytes(std::span(whole.data(), size)), digest);
    EXPECT_EQ(content.records.size(), size < 24 ? 0 : (size - 24) / 116) << size;
  }
  fs::resize_file(scratch.path("j"), whole.size() - 1);
  {
    const auto journal = std::move(Journal::open(scratch.path("j"), digest)).value();
    ASSERT_EQ(journal->records().size(), 2u);
    EXPECT_EQ(journal->records()[1].payload, payload);
    journal->append(3, payload).or_throw();
  }
  EXPECT_EQ(*base::read_file(scratch.path("j")), whole);
  {
    const auto journal = std::move(Journal::open(scratch.path("j"), digest)).value();
    journal->forget().or_throw();
    EXPECT_TRUE(journal->records().empty());
    EXPECT_EQ(std::move(Journal::open(scratch.path("j"), digest)).value()->records().size(), 0u);
    journal->append(1, payload).or_throw();
  }
  EXPECT_EQ(*base::read_file(scratch.path("j")), whole.substr(0, 24 + 116));
  EXPECT_EQ(std::move(Journal::open(scratch.path("j"), other)).value()->records().size(), 0u);
}

}  // namespace
}  // namespace overlace::gnn
