#include "cli/host_rates.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "overlace/error.h"
#include "src/base/file.h"

namespace overlace::cli {
namespace {

io::StorageFigures figures(bool is_direct) {
  io::StorageFigures out;
  out.is_direct = is_direct;
  out.write = {1 << 20, 8, false, 100, 0.1};
  out.in_order = {{1 << 20, 4, false, 1000, 1}, {1 << 20, 8, false, 2000, 1}};
  out.at_random = {{4096, 1, true, 5000, 1}, {4096, 32, true, 50000, 1}};
  out.start_us = 80;
  return out;
}

std::string storage_refusal(const std::string& path) {
  try {
    write_storage(path, storage_of(figures(true)));
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "taken";
}

TEST(HostRates, AreTheBestOverDepths) {
  spec::Machine machine;
  machine.name = "m";
  machine.storage = storage_of(figures(true));
  EXPECT_NEAR(disk_rate(machine, 1 << 20, 9).GBps, 2.097152, 1e-9);
  EXPECT_NEAR(disk_rate(machine, 4096, 9).GBps, 0.2048, 1e-9);
  EXPECT_EQ(disk_rate(machine, 4096, 9).origin, "measured, machine m");
  EXPECT_EQ(machine.storage.read_kIOPS, (spec::Figure{50, spec::Source::measured}));
  EXPECT_EQ(machine.storage.start_us, (spec::Figure{80, spec::Source::measured}));
  EXPECT_EQ(storage_text(machine),
            "reads 2.097 GB/s in requests of 1 MiB, 0.205 in pages, writes 1.049; measured, machine m");
  // The page cache's rates are not the disk's.
  EXPECT_EQ(storage_of(figures(false)).read_GBps.source, spec::Source::prior);
}

TEST(HostRates, SayThatAMachineHasNone) {
  const spec::Machine machine = spec::find_machine("cpu2");
  const HostRate disk = disk_rate(machine, 4096, 0.5), link = link_rate(machine, 7);
  EXPECT_EQ(disk.GBps, 0.5);
  EXPECT_EQ(
      disk.origin,
      "assumed: machine cpu2 has no figures of the disk, which overlace gnn diskbench DIR --machine FILE measures");
  EXPECT_EQ(link.GBps, 7);
  EXPECT_NE(link.origin.find("cpu2 has no figures of the host link"), std::string::npos) << link.origin;
  EXPECT_EQ("assumed: " + storage_text(machine), disk.origin);
  EXPECT_EQ("assumed: " + host_link_text(machine), link.origin);
}

TEST(HostRates, OfTheLinkAreThoseOfLongCopies) {
  spec::Machine machine;
  machine.name = "m";
  machine.host.to_device_us = {{{1 << 20, 50}, {64 << 20, 1250}}, spec::Source::prior};
  EXPECT_NEAR(link_rate(machine, 1).GBps, 64 * 1.048576 / 1.25, 1e-9);
  EXPECT_EQ(host_link_text(machine), "53.7 GB/s to a GPU; prior, machine m");
}

TEST(HostRates, GoIntoAFileThatKeepsTheRest) {
  const std::string folder = testing::TempDir(), path = folder + "host_rates.json", fresh = folder + "host_fresh.json";
  spec::Machine before = spec::find_machine("h200x2");
  before.storage.write_GBps = {9};
  std::string text = spec::to_json(before);
  text.insert(text.size() - 1, R"(,"x-note":[1,2])");
  base::write_file(path, text).or_throw();
  write_storage(path, storage_of(figures(true)));
  spec::Machine after = spec::find_machine(path);
  EXPECT_EQ(after.storage, storage_of(figures(true)));
  EXPECT_EQ(spec::digest(after), spec::digest(before)) << "plans that are kept stay";
  after.storage = before.storage;
  EXPECT_EQ(after, before);
  EXPECT_EQ(base::Json::parse(*base::read_file(path))->find("x-note")->dump(), "[1,2]");
  // Where there is none, one with these figures alone is made.
  std::filesystem::remove(fresh);
  write_storage(fresh, storage_of(figures(true)));
  EXPECT_EQ(spec::find_machine(fresh).name, "host_fresh");
  EXPECT_FALSE(spec::find_machine(fresh).has_costs());
  EXPECT_EQ(storage_refusal("cpu2"), "--machine is cpu2, wanted a file that ends in .json");
  base::write_file(path, R"({"storage": {}})").or_throw();
  EXPECT_NE(storage_refusal(path).find("/overlace_machine: got null, wanted 1"), std::string::npos)
      << storage_refusal(path);
  EXPECT_EQ(*base::read_file(path), R"({"storage": {}})");
}

}  // namespace
}  // namespace overlace::cli
