#include "src/context/machine.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "overlace/error.h"
#include "src/base/file.h"

namespace overlace::context {
namespace {

const Site kGpus = {.is_gpu = true, .device = "NVIDIA H200", .ranks = 2};
const Site kCpus = {.ranks = 2};

Found found(const Site& site, const Wanted& wanted = {}) { return find_machine(site, wanted).value(); }

/// A folder of machine files that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "machines-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  /// The two GPUs of h200x2, of another day and device.
  std::string add(const std::string& file, const std::string& date, const std::string& device, int ranks = 2) const {
    spec::Machine machine = spec::find_machine("h200x2");
    machine.name = file, machine.date = date, machine.device = device, machine.ranks = ranks;
    return write(file + ".json", spec::to_json(machine));
  }
  std::string write(const std::string& file, const std::string& text) const {
    const std::string path = path_ + "/" + file;
    EXPECT_TRUE(base::write_file(path, text).ok());
    return path;
  }

 private:
  std::string path_;
};

TEST(FindMachine, TakesTheShippedFileOfTheDeviceAndTheTeam) {
  EXPECT_EQ(found(kGpus).machine, spec::find_machine("h200x2"));
  EXPECT_EQ(found(kGpus).origin, "h200x2, shipped for NVIDIA H200 x 2");
  Site several = kGpus;
  for (const int ranks : {3, 4, 8}) {
    several.ranks = ranks;
    EXPECT_EQ(found(several).origin, "h200x4, shipped for NVIDIA H200 x 4") << "else the largest team's";
  }
  const Found other = found({.is_gpu = true, .device = "NVIDIA B200", .ranks = 8});
  EXPECT_EQ(other.machine.name, "h200x4");
  EXPECT_EQ(other.origin, "h200x4, shipped for NVIDIA H200 x 4; there is none for NVIDIA B200");
}

/// Figures may be another GPU's, capabilities never.
TEST(FindMachine, HasTheCapabilityOfTheGpusThatAreThere) {
  const Site a100 = {.is_gpu = true, .device = "NVIDIA A100-SXM4-80GB", .compute_capability = 80, .ranks = 2};
  EXPECT_EQ(found(a100).machine.compute_capability, 80);
  EXPECT_EQ(found(a100, {.argument = "h200x2"}).machine.compute_capability, 80);
  EXPECT_EQ(found(a100, {.argument = "50GB/s,2TFLOP/s"}).machine.compute_capability, 80);
  EXPECT_EQ(found(kGpus).machine.compute_capability, 90);
  EXPECT_EQ(found(kCpus).machine, spec::rated_machine({.hosts = 1}));
}

TEST(FindMachine, KnowsNothingOfCpuRanksLinksThatAreEmulatedAndSeveralHosts) {
  EXPECT_FALSE(found(kCpus).machine.has_costs());
  EXPECT_EQ(found(kCpus).origin, "no machine file for CPU ranks");
  const Found emulated = found({.ranks = 2, .emulated_bytes_per_s = 2e8});
  EXPECT_EQ(emulated.machine, spec::rated_machine({.link_bytes_per_s = 2e8}));
  EXPECT_EQ(emulated.origin, "no machine file for an emulated link");
  Site hosts = kGpus;
  hosts.hosts = 2;
  EXPECT_EQ(found(hosts).machine, spec::rated_machine({.is_gpu = true, .hosts = 2}));
  EXPECT_EQ(found(hosts).origin, "no machine file for 2 hosts");
  const spec::MachineRates rates = {true, 5e9, 1e14, 2};
  const Found measured = found(hosts, {.rates = rates});
  EXPECT_EQ(measured.machine, spec::rated_machine(rates));
  EXPECT_EQ(measured.origin, "measured rates of link and GEMM");
}

TEST(FindMachine, TheArgumentGoesBeforeTheVariableAndBothBeforeFiles) {
  const Folder folder;
  const std::string calibrated = folder.add("mine", "2026-11-01", "NVIDIA H200, bf16");
  EXPECT_EQ(found(kGpus, {.folder = folder.path()}).origin, calibrated + ", calibrated");
  EXPECT_EQ(found(kGpus, {.variable = "h200x2", .folder = folder.path()}).origin, "h200x2, OVERLACE_MACHINE");
  EXPECT_EQ(found(kGpus, {.argument = "h200x4", .variable = "h200x2"}).origin, "h200x4, the argument machine");
  EXPECT_EQ(found(kCpus, {.variable = "cpu2"}).origin, "cpu2, OVERLACE_MACHINE");
  EXPECT_EQ(found(kGpus, {.argument = calibrated}).machine.name, "mine");
}

TEST(FindMachine, FilesOfOtherMachinesArePassedOver) {
  const Folder folder;
  folder.add("four", "2026-11-09", "NVIDIA H200, bf16", 4);
  folder.add("other", "2026-11-09", "NVIDIA H100, bf16");
  folder.write("damaged.json", "{");
  folder.write("notes.txt", "no machine");
  EXPECT_EQ(found(kGpus, {.folder = folder.path()}).machine.name, "h200x2");
  folder.add("old", "2026-11-02", "NVIDIA H200, bf16");
  const std::string newest = folder.add("new", "2026-11-03", "NVIDIA H200, fp16");
  folder.add("older", "2026-11-01", "NVIDIA H200");
  EXPECT_EQ(found(kGpus, {.folder = folder.path()}).origin, newest + ", calibrated");
  EXPECT_EQ(found(kGpus, {.folder = folder.path() + "/missing"}).machine.name, "h200x2");
  // A machine of the other kind, and files where they say nothing.
  EXPECT_EQ(found(kCpus, {.variable = "h200x4"}).origin, "no machine file for CPU ranks");
  EXPECT_EQ(found(kGpus, {.variable = "cpu2"}).machine.name, "h200x2");
  EXPECT_EQ(found({.ranks = 2, .emulated_bytes_per_s = 2e8}, {.variable = "cpu2"}).origin,
            "no machine file for an emulated link");
}

TEST(FindMachine, ReadsRatesOfLinkAndGemm) {
  const Found rated = found(kCpus, {.argument = "200MB/s,50GFLOP/s"});
  EXPECT_EQ(rated.machine, spec::rated_machine({.link_bytes_per_s = 200e6, .flops_per_s = 50e9}));
  EXPECT_EQ(rated.origin, "200MB/s,50GFLOP/s, the argument machine");
  EXPECT_EQ(found(kCpus, {.variable = "1GB/s,1.5TFLOP/s"}).machine,
            spec::rated_machine({.link_bytes_per_s = 1e9, .flops_per_s = 1.5e12}));
  Site hosts = kGpus;
  hosts.hosts = 2;
  EXPECT_EQ(found(hosts, {.argument = "50GB/s,600TFLOP/s"}).machine, spec::rated_machine({true, 50e9, 600e12, 2}));
}

TEST(FindMachine, WhatCannotBeReadIsRefusedWithWhatIsWanted) {
  struct Row {
    const char *name, *got, *wanted;
  };
  for (const Row& row : std::vector<Row>{
           {"h200x3", "the argument machine is \"h200x3\"",
            "wanted a file that ends in .json or one of cpu2, h200x2, h200x2_calibrated, h200x4"},
           {"no/such.json", "the argument machine is \"no/such.json\"", "no/such.json"},
           {"10GB/s,fast", "the argument machine is \"10GB/s,fast\"", "rates of link and GEMM such as 50GB/s,2TFLOP/s"},
           {"10GB/s,-1GFLOP/s", "\"10GB/s,-1GFLOP/s\"", "rates of link and GEMM"},
           {"10GB/s,FLOP/s", "\"10GB/s,FLOP/s\"", "rates of link and GEMM"},
           {"10,1GFLOP/s", "\"10,1GFLOP/s\"", "10,0us"}}) {
    const base::Result<Found> refused = find_machine(kCpus, {.argument = row.name});
    ASSERT_FALSE(refused.ok()) << row.name;
    EXPECT_EQ(refused.status().code(), Errc::invalid_argument) << refused.status().message();
    EXPECT_NE(refused.status().message().find(row.got), std::string::npos) << refused.status().message();
    EXPECT_NE(refused.status().message().find(row.wanted), std::string::npos) << refused.status().message();
  }
}

TEST(FindMachine, DevicesAreTheSameWhateverTypeWasMeasured) {
  spec::Machine machine;
  machine.device = "NVIDIA H200, bf16";
  EXPECT_TRUE(is_same_device(machine, "NVIDIA H200"));
  EXPECT_FALSE(is_same_device(machine, "NVIDIA H200 NVL"));
  EXPECT_FALSE(is_same_device(machine, ""));
}

}  // namespace
}  // namespace overlace::context
