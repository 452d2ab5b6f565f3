// The plug-in: MPI's functions behind the table of api.h. Built once per MPI.
#include <mpi.h>

#include <cstdio>
#include <cstring>

#include "src/runtime/engine/mpi/api.h"

namespace {

constexpr int kTag = 1;

MPI_Comm messages = MPI_COMM_NULL;
bool has_started = false;  // by us

/// Handles are pointers in one MPI and integers in another.
template <class Handle>
uint64_t pack(Handle handle) {
  static_assert(sizeof handle <= sizeof(uint64_t));
  uint64_t word = 0;
  std::memcpy(&word, &handle, sizeof handle);
  return word;
}
template <class Handle>
Handle unpack(uint64_t word) {
  Handle handle;
  std::memcpy(&handle, &word, sizeof handle);
  return handle;
}

int open(int* rank, int* size) {
  int is_there = 0, level = 0;
  int code = MPI_Initialized(&is_there);
  if (code == MPI_SUCCESS && is_there == 0) {
    code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    has_started = code == MPI_SUCCESS;
  }
  if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, &messages);
  if (code != MPI_SUCCESS) return code;
  code = MPI_Comm_set_errhandler(messages, MPI_ERRORS_RETURN);
  if (code == MPI_SUCCESS) code = MPI_Comm_rank(messages, rank);
  return code == MPI_SUCCESS ? MPI_Comm_size(messages, size) : code;
}

int may_use_threads() {
  int is_there = 0, level = MPI_THREAD_SINGLE;
  if (MPI_Initialized(&is_there) != MPI_SUCCESS || is_there == 0) return 1;
  return MPI_Query_thread(&level) == MPI_SUCCESS && level == MPI_THREAD_MULTIPLE ? 1 : 0;
}

int send(int to, const void* data, int bytes, uint64_t* request) {
  MPI_Request handle = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data, bytes, MPI_BYTE, to, kTag, messages, &handle);
  *request = pack(handle);
  return code;
}

int probe(int* is_there, int* from, int* bytes, uint64_t* message) {
  MPI_Message handle = MPI_MESSAGE_NULL;
  MPI_Status status;
  const int code = MPI_Improbe(MPI_ANY_SOURCE, kTag, messages, is_there, &handle, &status);
  if (code != MPI_SUCCESS || *is_there == 0) return code;
  *from = status.MPI_SOURCE;
  *message = pack(handle);
  return MPI_Get_count(&status, MPI_BYTE, bytes);
}

int receive(uint64_t message, void* data, int bytes, uint64_t* request) {
  auto handle = unpack<MPI_Message>(message);
  MPI_Request pending = MPI_REQUEST_NULL;
  const int code = MPI_Imrecv(data, bytes, MPI_BYTE, &handle, &pending);
  *request = pack(pending);
  return code;
}

int test(uint64_t* request, int* is_done) {
  auto handle = unpack<MPI_Request>(*request);
  const int code = MPI_Test(&handle, is_done, MPI_STATUS_IGNORE);
  *request = pack(handle);
  return code;
}

int close() {
  int is_over = 0;
  int code = MPI_Finalized(&is_over);
  if (code != MPI_SUCCESS || is_over != 0) return code;
  code = MPI_Comm_free(&messages);
  return has_started && code == MPI_SUCCESS ? MPI_Finalize() : code;
}

void text(int code, char* to, int bytes) {
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) std::snprintf(words, sizeof words, "code %d", code);
  std::snprintf(to, static_cast<size_t>(bytes), "%s", words);
}

/// "Open MPI v4.1.4, package: ..." and "MPICH Version:\t4.0.2\n..." alike: the first number.
const char* version() {
  static char number[32];
  char words[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(words, &length) != MPI_SUCCESS) return "unknown";
  const size_t begin = std::strcspn(words, "0123456789");
  const size_t count = std::strspn(words + begin, "0123456789.");
  std::snprintf(number, sizeof number, "%.*s", static_cast<int>(count), words + begin);
  return number;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const OverlaceMpiTable* overlace_mpi_table() {
  static const OverlaceMpiTable table = {.abi = OverlaceMpiTable::kAbi,
                                         .name = OVERLACE_MPI_LIBRARY,
                                         .version = version(),
                                         .open = open,
                                         .may_use_threads = may_use_threads,
                                         .send = send,
                                         .probe = probe,
                                         .receive = receive,
                                         .test = test,
                                         .close = close,
                                         .text = text};
  return &table;
}
