// All-gathers over one server: the launcher, or rank 0 where ranks were started by somebody else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "overlace/bootstrap.h"
#include "src/base/status.h"
#include "src/runtime/bootstrap/socket.h"

namespace overlace::runtime {

/// Single-threaded: whoever owns it polls fd() and calls serve(). Who has not shown the token yet gets kGreetingBytes
/// of memory and, over TCP, kGreetingMs and one of kMaxStrangers places beside those of the ranks, the oldest of which
/// is given to who comes next.
class RelayServer {
 public:
  static constexpr size_t kGreetingBytes = 256, kMaxStrangers = 64;
  static constexpr int64_t kGreetingMs = 3000;

  /// Listens. `token`: what clients must know, at most 200 bytes; "" where the uid is all there is to check.
  static base::Result<std::unique_ptr<RelayServer>> open(const std::string& name, const std::string& token, int size,
                                                         bool* in_use = nullptr);
  ~RelayServer();
  /// Readable when there is something to serve.
  int fd() const { return epoll_.get(); }
  /// Handles what is there without waiting. Call at least every 100 ms: it also keeps the deadlines.
  void serve();
  int num_rejected() const { return num_rejected_; }
  /// Connections that have not said yet who they are.
  size_t num_strangers() const;

  struct Frame;

 private:
  struct Client {
    UniqueFd fd;
    int rank = -1;  // before its hello
    int64_t pid = 0;
    int64_t deadline_ns = 0;  // of its hello; 0: none
    std::vector<char> input;
  };
  struct Round {
    std::vector<std::optional<Bytes>> given;
    int count = 0;
    int64_t deadline_ns = 0, timeout_ms = 0;
    std::string failure;
  };
  RelayServer(UniqueFd listener, UniqueFd epoll, std::string token, int size);
  bool accept_one();
  void drop(int fd);
  void send_late_strangers_away();
  void keep_deadlines();
  bool read_from(Client& client);
  bool handle(Client& client, const Frame& frame, const char* payload);
  bool welcome(Client& client, const Frame& frame, const char* payload);
  void give(Client& client, const Frame& frame, const char* payload);
  void finish(uint64_t number, Round& round);
  void fail(uint64_t number, Round& round, const std::string& why);
  void lose(int rank, int64_t pid);
  Client* client_of(int rank);

  UniqueFd listener_, epoll_;
  const std::string token_;
  const size_t size_;
  std::map<int, std::unique_ptr<Client>> clients_;  // by descriptor
  std::map<uint64_t, Round> rounds_;
  std::map<int, int64_t> gone_;  // rank -> pid
  int num_rejected_ = 0;
};

/// Serves in a thread until destroyed.
class RelayThread {
 public:
  explicit RelayThread(std::unique_ptr<RelayServer> server);
  ~RelayThread();

 private:
  std::unique_ptr<RelayServer> server_;
  UniqueFd stop_;
  std::thread thread_;
};

/// Connects until the deadline. bootstrap with the reason: nobody there, wrong token, foreign uid, rank taken.
/// `server`: who that is, for the words of an error.
base::Result<std::unique_ptr<Bootstrap>> relay_bootstrap(const std::string& name, const std::string& token, int rank,
                                                         int size, int64_t timeout_ms,
                                                         const std::string& server = "the launcher");
/// Joins as relay_bootstrap() does, over a connection that is there.
base::Result<std::unique_ptr<Bootstrap>> join_relay(UniqueFd fd, const std::string& name, const std::string& token,
                                                    int rank, int size, int64_t deadline_ns, const std::string& server);

}  // namespace overlace::runtime
