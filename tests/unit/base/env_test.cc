#include "src/base/env.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

namespace overlace::base {
namespace {

std::string refusal(const std::string& setting) {
  const Result<Env> result = Env::parse({setting});
  if (result.ok()) return "accepted";
  EXPECT_EQ(result.status().code(), Errc::invalid_argument);
  return result.status().message();
}

const EnvValue& row(const std::vector<EnvValue>& rows, const std::string& name) {
  const auto it = std::find_if(rows.begin(), rows.end(), [&](const EnvValue& r) { return r.name == name; });
  if (it == rows.end()) throw_error(Errc::internal, name);
  return *it;
}

TEST(Env, DefaultsOfAnEmptyEnvironment) {
  const Env env = Env::parse({}).value();
  EXPECT_EQ(env.backend, "auto");
  EXPECT_EQ(env.timeout_s, 300);
  EXPECT_EQ(env.heap_bytes, 0);
  EXPECT_EQ(env.rank, -1);
  EXPECT_EQ(env.rank_source, "");
  EXPECT_EQ(env.cuda_device_max_connections, -1);
  EXPECT_TRUE(env.unknown().empty());
  for (const EnvValue& value : env.values()) {
    EXPECT_FALSE(value.is_set) << value.name;
    EXPECT_FALSE(value.accepted.empty()) << value.name;
    EXPECT_TRUE(value.doc.ends_with(".")) << value.name;
  }
}

TEST(Env, ReadsEachVariable) {
  const Env env = Env::parse({"OVERLACE_BACKEND=cuda_peer",
                              "OVERLACE_HEAP=ipc",
                              "OVERLACE_HEAP_BYTES=64M",
                              "OVERLACE_MAX_HEAP_BYTES=2G",
                              "OVERLACE_TIMEOUT_S=20",
                              "OVERLACE_WAIT=spin",
                              "OVERLACE_HOST_ID=left",
                              "OVERLACE_NET_ENGINE=none",
                              "OVERLACE_SECRET=0123456789abcdef",
                              "OVERLACE_LISTEN=ib0",
                              "OVERLACE_ADVERSARY=seed=7,pieces=2",
                              "OVERLACE_LINK=2GB/s,20us",
                              "OVERLACE_CHECK=sync,calls",
                              "OVERLACE_ALLOW_SHARED_GPU=1",
                              "OVERLACE_LOG=debug",
                              "OVERLACE_MACHINE=h200x4",
                              "OVERLACE_EXPLAIN=1",
                              "OVERLACE_TRACE=t.pftrace",
                              "OVERLACE_NVTX=1",
                              "OVERLACE_PLAN_CACHE=p.json",
                              "OVERLACE_LAUNCH_SOCKET=abc",
                              "CUDA_DEVICE_MAX_CONNECTIONS=1",
                              "PATH=/bin"})
                      .value();
  EXPECT_EQ(env.backend, "cuda_peer");
  EXPECT_EQ(env.heap, "ipc");
  EXPECT_EQ(env.heap_bytes, 64 << 20);
  EXPECT_EQ(env.max_heap_bytes, int64_t{2} << 30);
  EXPECT_EQ(env.timeout_s, 20);
  EXPECT_EQ(env.wait, "spin");
  EXPECT_EQ(env.host_id, "left");
  EXPECT_EQ(env.net_engine, "none");
  EXPECT_EQ(env.secret, "0123456789abcdef");
  EXPECT_EQ(env.listen, "ib0");
  EXPECT_EQ(env.adversary, "seed=7,pieces=2");
  EXPECT_EQ(env.link, "2GB/s,20us");
  EXPECT_EQ(env.check, "sync,calls");
  EXPECT_TRUE(env.allow_shared_gpu);
  EXPECT_EQ(env.log, "debug");
  EXPECT_EQ(env.machine, "h200x4");
  EXPECT_TRUE(env.explain);
  EXPECT_EQ(env.trace, "t.pftrace");
  EXPECT_TRUE(env.nvtx);
  EXPECT_EQ(env.plan_cache, "p.json");
  EXPECT_EQ(env.launch_socket, "abc");
  EXPECT_EQ(env.cuda_device_max_connections, 1);
  EXPECT_TRUE(row(env.values(), "OVERLACE_WAIT").is_set);
  EXPECT_EQ(row(env.values(), "OVERLACE_HEAP_BYTES").value, "67108864");
  EXPECT_FALSE(row(env.values(), "RANK").is_set);
}

TEST(Env, RefusesBadValuesWithNameValueAndAcceptedSet) {
  EXPECT_EQ(refusal("OVERLACE_BACKEND=gpu"), "OVERLACE_BACKEND is \"gpu\", wanted auto, cpu, cuda_peer");
  EXPECT_EQ(refusal("OVERLACE_TIMEOUT_S=0"), "OVERLACE_TIMEOUT_S is \"0\", wanted integer, 1 to 86400");
  for (const char* setting : {"OVERLACE_TIMEOUT_S=86401",
                              "OVERLACE_TIMEOUT_S=-1",
                              "OVERLACE_TIMEOUT_S=3s",
                              "OVERLACE_TIMEOUT_S= 3",
                              "OVERLACE_TIMEOUT_S=99999999999999999999",
                              "OVERLACE_HEAP=VMM",
                              "OVERLACE_HEAP_BYTES=-1",
                              "OVERLACE_HEAP_BYTES=1T",
                              "OVERLACE_MAX_HEAP_BYTES=2T",
                              "OVERLACE_HEAP_BYTES=M",
                              "OVERLACE_HEAP_BYTES=1.5G",
                              "OVERLACE_HEAP_BYTES=9223372036854775807G",
                              "OVERLACE_WAIT=sleep",
                              "OVERLACE_NET_ENGINE=tcp",
                              "OVERLACE_CHECK=sync,x",
                              "OVERLACE_CHECK=all",
                              "OVERLACE_ALLOW_SHARED_GPU=yes",
                              "OVERLACE_LOG=trace",
                              "OVERLACE_EXPLAIN=2",
                              "OVERLACE_NVTX=on",
                              "CUDA_DEVICE_MAX_CONNECTIONS=many"}) {
    const std::string text = refusal(setting), name = std::string(setting).substr(0, std::string(setting).find('='));
    EXPECT_TRUE(text.starts_with(name + " is \"")) << setting << ": " << text;
    EXPECT_NE(text.find(", wanted "), std::string::npos) << text;
  }
}

TEST(Env, HeapBytesTakesSuffixes) {
  EXPECT_EQ(Env::parse({"OVERLACE_HEAP_BYTES=3K"})->heap_bytes, 3072);
  EXPECT_EQ(Env::parse({"OVERLACE_HEAP_BYTES=2G"})->heap_bytes, int64_t{2} << 30);
  EXPECT_EQ(Env::parse({"OVERLACE_HEAP_BYTES=123"})->heap_bytes, 123);
  EXPECT_EQ(Env::parse({"OVERLACE_HEAP_BYTES=8589934591G"})->heap_bytes, int64_t{8589934591} << 30);
  EXPECT_NE(refusal("OVERLACE_HEAP_BYTES=8589934592G"), "accepted");
}

TEST(Env, SetToNothingCountsAsNotSet) {
  const Env env = Env::parse({"OVERLACE_TIMEOUT_S=", "OVERLACE_BACKEND="}).value();
  EXPECT_EQ(env.timeout_s, 300);
  EXPECT_FALSE(row(env.values(), "OVERLACE_BACKEND").is_set);
}

TEST(Env, RecognisesLaunchers) {
  const Env torch = Env::parse({"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500",
                                "TORCHELASTIC_RUN_ID=job", "TORCHELASTIC_RESTART_COUNT=2"})
                        .value();
  EXPECT_EQ(torch.rank_source, "torchrun");
  EXPECT_EQ(torch.rank, 3);
  EXPECT_EQ(torch.world_size, 8);
  EXPECT_EQ(torch.local_rank, 1);
  EXPECT_EQ(torch.master_port, "29500");
  EXPECT_EQ(torch.run_id, "job.2");
  const Env mpi = Env::parse({"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"}).value();
  EXPECT_EQ(mpi.rank_source, "openmpi");
  EXPECT_EQ(mpi.rank, 1);
  EXPECT_EQ(mpi.local_rank, -1);
  EXPECT_EQ(Env::parse({"PMI_RANK=0", "PMI_SIZE=4"})->rank_source, "pmi");
  EXPECT_EQ(Env::parse({"SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=6", "SLURM_LOCALID=0"})->rank, 5);
  EXPECT_EQ(Env::parse({"PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"})->local_size, 2);
  EXPECT_EQ(
      Env::parse({"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=1"})->local_size, 1);
}

TEST(Env, ShowsNoSecrets) {
  const Env env =
      Env::parse({"OVERLACE_SECRET=0123456789abcdef", "OVERLACE_LAUNCH_SOCKET=name:fedcba9876543210"}).value();
  EXPECT_EQ(row(env.values(), "OVERLACE_SECRET").value, "(hidden)");
  EXPECT_EQ(row(env.values(), "OVERLACE_LAUNCH_SOCKET").value, "name:(hidden)");
  EXPECT_EQ(row(Env::parse({})->values(), "OVERLACE_SECRET").value, "");
}

TEST(Env, KnowsTheLauncherOfMpiBesideAnother) {
  EXPECT_EQ(Env::parse({"RANK=1", "WORLD_SIZE=4"})->mpi_rank, -1);
  EXPECT_EQ(Env::parse({"RANK=1", "WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=2"})->mpi_rank, 2);
  EXPECT_EQ(Env::parse({"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "PMIX_RANK=1"})->mpi_rank, 1);
  EXPECT_EQ(Env::parse({"PMI_RANK=0", "PMI_SIZE=4"})->mpi_rank, 0);
}

TEST(Env, KnowsTheHostsOfASlurmStep) {
  const Env two = Env::parse({"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NUM_NODES=2", "SLURM_JOB_ID=77",
                              "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=gpu[09-10]-ib,login"})
                      .value();
  EXPECT_EQ(two.rank_source, "slurm");
  EXPECT_EQ(two.local_size, 0);
  EXPECT_EQ(two.master_addr, "gpu09-ib");
  EXPECT_EQ(two.run_id, "77.0");
  EXPECT_EQ(Env::parse({"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NUM_NODES=1"})->local_size, 4);
  EXPECT_EQ(
      Env::parse({"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=a[1-2]", "MASTER_ADDR=10.1.1.9"})
          ->master_addr,
      "10.1.1.9");
  EXPECT_EQ(first_host("node[01-04,07],x3"), "node01");
  EXPECT_EQ(first_host("x3,node[01-04]"), "x3");
  EXPECT_EQ(first_host("alone"), "alone");
  EXPECT_EQ(first_host("broken[3"), "broken3");
  EXPECT_EQ(first_host(""), "");
  const Env own = Env::parse({"OVERLACE_LAUNCH_SOCKET=x", "RANK=0", "WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=9"}).value();
  EXPECT_EQ(own.rank_source, "overlace");
  EXPECT_EQ(own.world_size, 2);
}

TEST(Env, TakesASlurmJobForItsStep) {
  const Env env = Env::parse({"SLURM_PROCID=1", "SLURM_NTASKS=4", "SLURM_LOCALID=1", "SLURM_NODELIST=a[1-2]"}).value();
  EXPECT_EQ(env.rank, 1);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_size, 0);
  EXPECT_EQ(env.master_addr, "a1");
  EXPECT_EQ(env.run_id, "");
  EXPECT_EQ(Env::parse({"SLURM_PROCID=1", "SLURM_NTASKS=4", "SLURM_NODELIST=a1"})->local_size, 4);
  EXPECT_EQ(Env::parse({"SLURM_PROCID=1", "SLURM_NTASKS=4", "SLURM_NNODES=2", "SLURM_NODELIST=a1"})->local_size, 0);
  EXPECT_EQ(Env::parse({"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_NTASKS=4"})->world_size, 2);
  // No ranks: who only holds an allocation, and the script of a batch job.
  EXPECT_EQ(Env::parse({"SLURM_NTASKS=4"})->world_size, -1);
  EXPECT_EQ(Env::parse({"SLURM_PROCID=0", "SLURM_NTASKS=4", "ENVIRONMENT=BATCH"})->world_size, -1);
}

TEST(Env, RemembersARankWithoutANumberOfRanks) {
  const Env alone = Env::parse({"PMIX_RANK=3"}).value();
  EXPECT_EQ(alone.rank_source, "pmix");
  EXPECT_EQ(alone.rank, 3);
  EXPECT_EQ(alone.world_size, -1);
  const Env known = Env::parse({"PMIX_RANK=3", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"}).value();
  EXPECT_EQ(known.rank_source, "openmpi");
  EXPECT_EQ(known.rank, 1);
}

TEST(Env, IgnoresAStrayRankButRefusesABadOne) {
  EXPECT_EQ(Env::parse({"RANK=general"})->rank, -1);
  EXPECT_EQ(refusal("WORLD_SIZE=two"), "WORLD_SIZE is \"two\", wanted an integer >= 0");
  EXPECT_EQ(Env::parse({"WORLD_SIZE=2147483647"})->world_size, 2147483647);
  EXPECT_EQ(refusal("WORLD_SIZE=2147483648"), "WORLD_SIZE is \"2147483648\", wanted an integer >= 0");
  EXPECT_EQ(refusal("WORLD_SIZE=99999999999"), "WORLD_SIZE is \"99999999999\", wanted an integer >= 0");
}

TEST(Env, NamesTheNearestKnownVariable) {
  const Env env = Env::parse({"OVERLACE_TIMEOUT=3", "OVERLACE_BACKENDS=cpu", "OVERLACE_LOG=info"}).value();
  const auto unknown = env.unknown();
  ASSERT_EQ(unknown.size(), 2u);
  EXPECT_EQ(unknown[0], (std::pair<std::string, std::string>("OVERLACE_BACKENDS", "OVERLACE_BACKEND")));
  EXPECT_EQ(unknown[1], (std::pair<std::string, std::string>("OVERLACE_TIMEOUT", "OVERLACE_TIMEOUT_S")));
}

TEST(Env, ReadsTheProcess) { EXPECT_FALSE(env().values().empty()); }

/// docs/reference/env.md as the code would write its table.
std::string reference_table(bool of_overlace) {
  std::string text = of_overlace ? "| variable | accepted | default | meaning |\n|---|---|---|---|\n"
                                 : "| variable | accepted | meaning |\n|---|---|---|\n";
  const Env env = Env::parse({}).value();
  for (const EnvValue& v : env.values()) {
    if (v.name.starts_with("OVERLACE_") != of_overlace) continue;
    const std::string shown = v.value.empty() ? "(none)" : "`" + v.value + "`";
    text += of_overlace ? base::format("| `{}` | {} | {} | {} |\n", v.name, v.accepted, shown, v.doc)
                        : base::format("| `{}` | {} | {} |\n", v.name, v.accepted, v.doc);
  }
  return text;
}

TEST(Env, ReferencePageIsWhatTheCodeSays) {
  std::ifstream file(OVERLACE_SOURCE_DIR "/docs/reference/env.md");
  ASSERT_TRUE(file.good());
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_NE(page.find(reference_table(true)), std::string::npos) << reference_table(true);
  EXPECT_NE(page.find(reference_table(false)), std::string::npos) << reference_table(false);
}

/// All C++ of the library and of the command line, less what declares and parses the variables.
std::string sources_of_readers() {
  namespace fs = std::filesystem;
  std::string text;
  for (const char* folder : {"/src", "/cli"})
    for (const auto& entry : fs::recursive_directory_iterator(std::string(OVERLACE_SOURCE_DIR) + folder)) {
      const std::string path = entry.path().string();
      if (!path.ends_with(".cc") && !path.ends_with(".h")) continue;
      if (path.find("/src/base/env.") != std::string::npos) continue;
      std::ifstream file(path);
      text.append(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  return text;
}

/// OVERLACE_TRACE and OVERLACE_EXPLAIN were documented for a while and nothing read them.
TEST(Env, EachVariableIsReadBySomething) {
  const std::string sources = sources_of_readers();
  const auto is_read = [&](const std::string& use) {
    for (size_t at = sources.find(use); at != std::string::npos; at = sources.find(use, at + 1)) {
      const char next = sources[at + use.size()];
      if (std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '_') return true;
    }
    return false;
  };
  const Env env = Env::parse({}).value();
  int count = 0;
  for (const EnvValue& v : env.values()) {
    if (!v.name.starts_with("OVERLACE_")) continue;
    std::string member = v.name.substr(std::string("OVERLACE_").size());
    std::transform(member.begin(), member.end(), member.begin(), [](unsigned char c) { return std::tolower(c); });
    if (member == "cache_dir") member = "cache_folder";  // which has its default
    EXPECT_TRUE(is_read("env()." + member) || is_read("env." + member)) << v.name;
    ++count;
  }
  EXPECT_GE(count, 23);
  EXPECT_FALSE(is_read("env().cache_dirs"));
}

}  // namespace
}  // namespace overlace::base
