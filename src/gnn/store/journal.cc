#include "src/gnn/store/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "src/base/crc32c.h"
#include "src/base/file.h"

namespace overlace::gnn {
namespace {

constexpr std::array<char, 8> kJournalMagic = {'O', 'V', 'L', 'J', 'R', 'N', 'L', '1'};

struct JournalHead {
  std::array<char, 8> magic = kJournalMagic;
  std::array<uint8_t, 16> digest{};
};
struct RecordHead {
  uint32_t bytes = 0, number = 0, kind = 0, crc = 0;  // of number, kind and payload
};

uint32_t crc_of(const RecordHead& head, std::span<const std::byte> payload) {
  const std::array<uint32_t, 2> named = {head.number, head.kind};
  return base::crc32c(payload, base::crc32c(std::as_bytes(std::span(named))));
}

template <class T>
std::span<const std::byte> raw_bytes(const T& value) {
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}

}  // namespace

JournalContent parse_journal(std::span<const std::byte> bytes, const std::array<uint8_t, 16>& digest) {
  JournalContent out;
  JournalHead head;
  if (bytes.size() < sizeof(JournalHead)) return out;
  std::memcpy(&head, bytes.data(), sizeof(JournalHead));
  if (head.magic != kJournalMagic || head.digest != digest) return out;
  out.is_ours = true;
  out.whole_bytes = sizeof(JournalHead);
  while (bytes.size() - out.whole_bytes >= sizeof(RecordHead)) {
    RecordHead record;
    std::memcpy(&record, bytes.data() + out.whole_bytes, sizeof(record));
    const std::span<const std::byte> rest = bytes.subspan(out.whole_bytes + sizeof(record));
    if (record.bytes > rest.size() || record.number != out.records.size()) break;
    const std::span<const std::byte> payload = rest.first(record.bytes);
    if (record.crc != crc_of(record, payload)) break;
    out.records.push_back({record.kind, {payload.begin(), payload.end()}});
    out.whole_bytes += sizeof(record) + payload.size();
  }
  return out;
}

base::Result<std::unique_ptr<Journal>> Journal::open(const std::string& path, const std::array<uint8_t, 16>& digest) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return base::error(Errc::io, "{}: open: {}", path, std::generic_category().message(errno));
  std::unique_ptr<Journal> journal(new Journal(path, fd));
  const auto text = base::read_file(path);
  if (!text.ok()) return text.status();
  JournalContent content = parse_journal(std::as_bytes(std::span(text->data(), text->size())), digest);
  journal->end_ = static_cast<int64_t>(content.whole_bytes);
  journal->next_ = static_cast<uint32_t>(content.records.size());
  journal->records_ = std::move(content.records);
  if (::ftruncate(fd, journal->end_) != 0)
    return base::error(Errc::io, "{}: resize: {}", path, std::generic_category().message(errno));
  if (!content.is_ours) {
    JournalHead head;
    head.digest = digest;
    OVERLACE_TRY(journal->write_at_end(raw_bytes(head)));
    const size_t slash = path.rfind('/');
    OVERLACE_TRY(base::sync_directory(slash == std::string::npos ? "." : path.substr(0, slash)));
  }
  return journal;
}

Journal::~Journal() { ::close(fd_); }

base::Status Journal::append(uint32_t kind, std::span<const std::byte> payload) {
  RecordHead head{static_cast<uint32_t>(payload.size()), next_, kind, 0};
  head.crc = crc_of(head, payload);
  std::vector<std::byte> bytes(raw_bytes(head).begin(), raw_bytes(head).end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  OVERLACE_TRY(write_at_end(bytes));
  ++next_;
  return {};
}

base::Status Journal::forget() {
  if (next_ == 0) return {};
  if (::ftruncate(fd_, sizeof(JournalHead)) != 0 || ::fdatasync(fd_) != 0)
    return base::error(Errc::io, "{}: resize: {}", path_, std::generic_category().message(errno));
  end_ = sizeof(JournalHead);
  next_ = 0;
  records_.clear();
  return {};
}

base::Status Journal::write_at_end(std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, end_ + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return base::error(Errc::io, "{}: write: {}", path_, std::generic_category().message(n < 0 ? errno : ENOSPC));
    done += static_cast<size_t>(n);
  }
  if (::fdatasync(fd_) != 0)
    return base::error(Errc::io, "{}: sync: {}", path_, std::generic_category().message(errno));
  end_ += static_cast<int64_t>(bytes.size());
  return {};
}

}  // namespace overlace::gnn
