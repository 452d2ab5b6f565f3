#include "cli/word_list.h"

#include <algorithm>
#include <charconv>

#include "overlace/error.h"
#include "src/base/format.h"

namespace overlace::cli {

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    out.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::vector<int64_t> numbers_of(const char* option, const std::string& list, int64_t most, int64_t least) {
  std::vector<int64_t> out;
  for (const std::string& word : words_of(list)) {
    int64_t value = 0;
    const auto [stop, code] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (code != std::errc() || stop != word.data() + word.size() || value < least)
      throw_error(Errc::invalid_argument,
                  base::format("{} is {}, wanted whole numbers of at least {} between commas", option, list, least));
    if (value > most)
      throw_error(Errc::invalid_argument, base::format("{} has {}, wanted at most {}", option, value, most));
    out.push_back(value);
  }
  return out;
}

std::string aligned(const std::vector<std::vector<std::string>>& rows, size_t left) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += i < left ? row[i] + pad : pad + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace overlace::cli
