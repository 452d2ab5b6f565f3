// A libnccl.so.2 that fails, hangs and reports as it is told, and knows what NCCL would crash of.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tests/ranks/nccl/stand_ins.h"

namespace {

using overlace::test::nccl::Counts;
using overlace::test::nccl::Fault;
using overlace::test::nccl::Work;

static_assert(ncclSuccess == 0 && ncclSystemError == 2 && ncclInvalidArgument == 4 && ncclInProgress == 7,
              "what the tests read in messages");

/// What ranks meet in: who has come to which step.
struct World {
  int size = 0;
  std::map<std::string, int> arrived;
  std::map<int, std::shared_ptr<World>> children;  // by number of the split
};

}  // namespace

struct ncclComm : std::enable_shared_from_this<ncclComm> {
  std::shared_ptr<World> world;
  int rank = 0;
  bool is_blocking = true;
  bool is_alive = true, is_aborted = false;
  std::string awaited;  // step of a non-blocking one that others have not come to
  int splits = 0, collectives = 0;
  int in_groups = 0;  // calls in groups that are open
  ncclResult_t reported = ncclSuccess;
};

namespace {

constexpr std::chrono::seconds kLongestHang{60};

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<std::pair<ncclComm*, cudaStream_t>> calls;
};
thread_local Group t_group;
thread_local int t_rank = -1;

class Played final : public overlace::test::nccl::Library {
 public:
  void reset() override {
    const std::lock_guard lock(mutex_);
    faults_.clear(), misuses_.clear(), worlds_.clear(), comms_.clear();
    counts_ = {};
    is_released_ = false;
    version_ = 22809;
    blocking_ = -1;
  }
  void set_streams(void (*enqueue)(cudaStream_t, Work)) override { enqueue_ = enqueue; }
  void set_version(int version) override { version_ = version; }
  void set_blocking(int blocking) override { blocking_ = blocking; }
  void set_rank(int rank) override { t_rank = rank; }
  void add(const Fault& fault) override {
    const std::lock_guard lock(mutex_);
    faults_.push_back(fault);
  }
  int faults_left() override {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(faults_.size());
  }
  void reset_faults() override {
    const std::lock_guard lock(mutex_);
    faults_.clear();
  }
  void release() override {
    const std::lock_guard lock(mutex_);
    is_released_ = true;
    changed_.notify_all();
  }
  Counts counts() override {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  int running() override {
    const std::lock_guard lock(mutex_);
    return running_;
  }
  int group_depth() override { return t_group.depth; }
  std::vector<std::string> misuses() override {
    const std::lock_guard lock(mutex_);
    return misuses_;
  }

  int version() const { return version_; }

  /// Every call: its faults, then `body` under the lock.
  template <class Body>
  ncclResult_t call(const char* name, ncclComm* comm, const Body& body) {
    std::unique_lock lock(mutex_);
    ++running_;
    const ncclResult_t code = checked(lock, name, comm, body);
    --running_;
    changed_.notify_all();
    return code;
  }
  void misuse(const std::string& what) { misuses_.push_back(what); }

  ncclComm* open(std::shared_ptr<World> world, int rank, bool is_blocking) {
    comms_.push_back(std::make_shared<ncclComm>());
    ncclComm* const comm = comms_.back().get();
    comm->world = std::move(world);
    comm->rank = rank;
    const int blocking = blocking_;
    comm->is_blocking = blocking < 0 ? is_blocking : blocking != 0;
    ++counts_.opened;
    return comm;
  }
  std::shared_ptr<World> meet(const ncclUniqueId& id, int size) {
    std::shared_ptr<World>& world = worlds_[std::string(id.internal, sizeof id.internal)];
    if (!world) world = std::make_shared<World>();
    world->size = size;
    return world;
  }
  ncclResult_t come(ncclComm* comm, const std::string& step) {
    ++comm->world->arrived[step];
    comm->awaited = step;
    return ncclInProgress;
  }
  static bool is_met(const World& world, const std::string& step) {
    const auto found = world.arrived.find(step);
    return found != world.arrived.end() && found->second >= world.size;
  }
  void end(ncclComm* comm, int* count) {
    if (comm->in_groups > 0) misuse("a communicator ended while an open group holds calls of it");
    comm->is_alive = false;
    ++*count;
  }
  void wait(std::unique_lock<std::mutex>* lock, const std::function<bool()>& is_done) {
    if (!changed_.wait_for(*lock, kLongestHang, [&] { return is_released_ || is_done(); }))
      misuse("a call was left to hang");
  }
  /// One step of all ranks, on the stream of each.
  void queue(ncclComm* comm, cudaStream_t stream) {
    const std::string step = "collective " + std::to_string(comm->collectives++);
    ++comm->world->arrived[step];
    if (enqueue_ == nullptr) return;
    queued_.emplace_back(stream, [this, comm = comm->shared_from_this(), world = comm->world, step] {
      const std::lock_guard lock(mutex_);
      return comm->is_aborted || is_met(*world, step);
    });
  }

  Counts& all() { return counts_; }
  bool is_known(ncclComm* comm) const {
    return std::any_of(comms_.begin(), comms_.end(), [&](const auto& one) { return one.get() == comm; });
  }

 private:
  template <class Body>
  ncclResult_t checked(std::unique_lock<std::mutex>& lock, const char* name, ncclComm* comm, const Body& body) {
    const bool is_of_group = std::strcmp(name, "ncclGroupStart") == 0 || std::strcmp(name, "ncclGroupEnd") == 0;
    if (comm != nullptr && (!is_known(comm) || !comm->is_alive)) {
      misuse(std::string(name) + " of a communicator that is gone");
      return ncclInvalidArgument;
    }
    const int rank = comm != nullptr ? comm->rank : t_rank;
    const auto found = std::find_if(faults_.begin(), faults_.end(), [&](Fault& fault) {
      return fault.call == name && fault.rank == rank && --fault.nth == 0;
    });
    if (found == faults_.end()) return finish(lock, body);
    const Fault fault = *found;
    faults_.erase(found);
    if (fault.kind == Fault::Kind::fails_late) {
      (void)finish(lock, body);
      return fault.code;
    }
    if (fault.kind == Fault::Kind::reports) {
      const ncclResult_t code = finish(lock, body);
      if (comm != nullptr) comm->reported = fault.code;
      return code;
    }
    if (fault.kind == Fault::Kind::hangs) {
      const std::vector<std::pair<ncclComm*, cudaStream_t>> calls = t_group.calls;
      const auto is_aborted = [&] {
        return (comm != nullptr && comm->is_aborted) ||
               (is_of_group &&
                std::any_of(calls.begin(), calls.end(), [](const auto& c) { return c.first->is_aborted; }));
      };
      if (std::strcmp(name, "ncclGroupEnd") == 0) leave_group();  // what NCCL holds from here on an abort may end
      wait(&lock, is_aborted);
      return is_aborted() ? fault.code : finish(lock, body);
    }
    if (std::strcmp(name, "ncclGroupEnd") == 0) leave_group();
    if (t_group.depth > 0 && !is_of_group) t_group.error = fault.code;
    return fault.code;
  }
  template <class Body>
  ncclResult_t finish(std::unique_lock<std::mutex>& lock, const Body& body) {
    const ncclResult_t code = body(&lock);
    std::vector<std::pair<cudaStream_t, Work>> queued;
    queued.swap(queued_);
    lock.unlock();
    for (auto& [stream, work] : queued) enqueue_(stream, std::move(work));
    lock.lock();
    return code;
  }

 public:
  void leave_group() {
    if (t_group.depth == 0 || --t_group.depth > 0) return;
    for (const auto& [comm, stream] : t_group.calls) --comm->in_groups;
    t_group.calls.clear();
    t_group.error = ncclSuccess;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Fault> faults_;
  std::vector<std::string> misuses_;
  std::map<std::string, std::shared_ptr<World>> worlds_;
  std::vector<std::shared_ptr<ncclComm>> comms_;  // the dead too, so that their use is seen
  std::vector<std::pair<cudaStream_t, Work>> queued_;
  Counts counts_;
  void (*enqueue_)(cudaStream_t, Work) = nullptr;
  std::atomic<int> blocking_{-1};  // each rank sets it
  int version_ = 22809, running_ = 0;
  bool is_released_ = false;
};

Played& played() {
  static Played* const made = new Played;
  return *made;
}

/// A call that puts work on a stream, or into the group of the thread.
ncclResult_t queue(const char* name, ncclComm_t comm, cudaStream_t stream) {
  if (comm == nullptr) {
    if (t_group.depth > 0) t_group.error = ncclInvalidArgument;
    return ncclInvalidArgument;
  }
  return played().call(name, comm, [&](std::unique_lock<std::mutex>*) {
    if (t_group.depth > 0) {
      t_group.calls.emplace_back(comm, stream);
      ++comm->in_groups;
    } else {
      played().queue(comm, stream);
    }
    return ncclSuccess;
  });
}

void refuse_in_group(const char* name) {
  if (t_group.depth > 0) played().misuse(std::string(name) + " inside a group: NCCL would wait for its end");
}

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED overlace::test::nccl::Library* overlace_test_nccl() { return &played(); }

EXPORTED ncclResult_t ncclGetVersion(int* version) {
  *version = played().version();
  return ncclSuccess;
}
EXPORTED ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return played().call("ncclGetUniqueId", nullptr, [&](std::unique_lock<std::mutex>*) {
    static int ids = 0;
    std::memset(id, 0, sizeof *id);
    std::memcpy(id->internal, &++ids, sizeof ids);
    return ncclSuccess;
  });
}
EXPORTED ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                             ncclConfig_t* config) {
  *comm = nullptr;
  return played().call("ncclCommInitRankConfig", nullptr, [&](std::unique_lock<std::mutex>* lock) {
    *comm = played().open(played().meet(id, size), rank, config->blocking != 0);
    const ncclResult_t code = played().come(*comm, "init");
    if (!(*comm)->is_blocking) return code;
    played().wait(lock, [&] { return Played::is_met(*(*comm)->world, "init"); });
    return ncclSuccess;
  });
}
EXPORTED ncclResult_t ncclCommSplit(ncclComm_t comm, int, int key, ncclComm_t* child, ncclConfig_t* config) {
  *child = nullptr;
  return played().call("ncclCommSplit", comm, [&](std::unique_lock<std::mutex>*) {
    const int number = comm->splits++;
    std::shared_ptr<World>& world = comm->world->children[number];
    if (!world) world = std::make_shared<World>();
    world->size = comm->world->size;
    *child = played().open(world, key, config->blocking != 0);
    return played().come(comm, "split " + std::to_string(number));
  });
}
EXPORTED ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  return played().call("ncclCommGetAsyncError", comm, [&](std::unique_lock<std::mutex>*) {
    *state = comm->reported;
    if (*state != ncclSuccess || comm->awaited.empty()) return ncclSuccess;
    if (Played::is_met(*comm->world, comm->awaited)) comm->awaited.clear();
    *state = comm->awaited.empty() ? ncclSuccess : ncclInProgress;
    return ncclSuccess;
  });
}
EXPORTED ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return played().call("ncclCommFinalize", comm, [&](std::unique_lock<std::mutex>* lock) {
    refuse_in_group("ncclCommFinalize");
    const ncclResult_t code = played().come(comm, "finalize");
    if (!comm->is_blocking) return code;
    played().wait(lock, [&] { return comm->is_aborted || Played::is_met(*comm->world, "finalize"); });
    return comm->is_aborted ? ncclInternalError : ncclSuccess;
  });
}
EXPORTED ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return played().call("ncclCommDestroy", comm, [&](std::unique_lock<std::mutex>*) {
    refuse_in_group("ncclCommDestroy");
    played().end(comm, &played().all().destroyed);
    return ncclSuccess;
  });
}
EXPORTED ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return played().call("ncclCommAbort", comm, [&](std::unique_lock<std::mutex>*) {
    if (comm == nullptr) played().misuse("ncclCommAbort of no communicator");
    if (comm == nullptr) return ncclSuccess;
    refuse_in_group("ncclCommAbort");
    comm->is_aborted = true;
    played().end(comm, &played().all().aborted);
    return ncclSuccess;
  });
}
EXPORTED const char* ncclGetErrorString(ncclResult_t) { return "as the test wants"; }

EXPORTED ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t comm, cudaStream_t stream) {
  return queue("ncclAllGather", comm, stream);
}
EXPORTED ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t comm,
                                        cudaStream_t stream) {
  return queue("ncclReduceScatter", comm, stream);
}
EXPORTED ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t comm,
                                    cudaStream_t stream) {
  return queue("ncclAllReduce", comm, stream);
}
EXPORTED ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t comm,
                                    cudaStream_t stream) {
  return queue("ncclBroadcast", comm, stream);
}
EXPORTED ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t comm,
                                 cudaStream_t stream) {
  return queue("ncclReduce", comm, stream);
}
EXPORTED ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t comm, cudaStream_t stream) {
  return queue("ncclSend", comm, stream);
}
EXPORTED ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t comm, cudaStream_t stream) {
  return queue("ncclRecv", comm, stream);
}
EXPORTED ncclResult_t ncclGroupStart() {
  return played().call("ncclGroupStart", nullptr, [](std::unique_lock<std::mutex>*) {
    ++t_group.depth;
    return ncclSuccess;
  });
}
EXPORTED ncclResult_t ncclGroupEnd() {
  return played().call("ncclGroupEnd", nullptr, [](std::unique_lock<std::mutex>*) {
    if (t_group.depth == 0) return ncclInvalidUsage;
    const Group group = t_group;
    played().leave_group();
    if (group.depth > 1 || group.error != ncclSuccess) return group.error;
    std::set<ncclComm*> known;
    for (const auto& [comm, stream] : group.calls) {
      if (!comm->is_alive) played().misuse("ncclGroupEnd of calls whose communicator is gone");
      if (comm->is_alive && known.insert(comm).second) played().queue(comm, stream);
    }
    return ncclSuccess;
  });
}

}  // extern "C"
