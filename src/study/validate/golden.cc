#include "src/study/validate/golden.h"

#include <charconv>
#include <cmath>

#include "src/base/file.h"

namespace overlace::study {
namespace {

std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == ',')
      cells.emplace_back();
    else if (c != '\r')
      cells.back() += c;
  }
  return cells;
}

}  // namespace

base::Result<Golden> Golden::parse(std::string_view text, std::string_view source) {
  Golden golden;
  golden.source_ = source;
  int number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> cells = cells_of(line);
    if (golden.columns_.empty()) {
      golden.columns_ = std::move(cells);
      continue;
    }
    if (cells.size() != golden.columns_.size())
      return base::error(Errc::corrupt, "{}:{}: {} cells, wanted {}", source, number, cells.size(),
                         golden.columns_.size());
    golden.rows_.push_back(std::move(cells));
  }
  if (golden.rows_.empty()) return base::error(Errc::corrupt, "{}: no rows, wanted at least 1", source);
  return golden;
}

base::Result<Golden> Golden::load(const std::string& path) {
  const base::Result<std::string> text = base::read_file(path);
  if (!text.ok()) return text.status();
  return parse(*text, path);
}

const std::string& Golden::text(size_t row, std::string_view column) const {
  OVERLACE_ASSERT(row < rows_.size());
  for (size_t i = 0; i < columns_.size(); ++i)
    if (columns_[i] == column) return rows_[row][i];
  throw_error(Errc::corrupt, base::format("{}: no column {}", source_, column));
}

double Golden::number(size_t row, std::string_view column) const {
  const std::string& cell = text(row, column);
  double value = 0;
  const auto [stop, code] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (code != std::errc() || stop != cell.data() + cell.size() || !std::isfinite(value))
    throw_error(Errc::corrupt, base::format("{}: row {}, {}: \"{}\", wanted a number", source_, row + 1, column, cell));
  return value;
}

int64_t Golden::integer(size_t row, std::string_view column) const {
  const double value = number(row, column);
  if (value != std::floor(value) || std::abs(value) > 9e15)
    throw_error(Errc::corrupt,
                base::format("{}: row {}, {}: {}, wanted a whole number", source_, row + 1, column, value));
  return static_cast<int64_t>(value);
}

}  // namespace overlace::study
