// A file for the rows of a row store.
#pragma once

#include <cstdint>
#include <string>

namespace lane {

/// Return the descriptor of a new, empty file in a directory, which the caller closes; throws std::runtime_error.
/// The file has lost its name, so it disappears with the process, however that ends.  `role` is a part of the former
/// name, which the system shows in /proc.
int new_scratch_file(const std::string& directory, const std::string& role);
/// Make a file of `size` bytes longer and reserve its blocks on the disk; throws MemoryRefused.  `name` stands in
/// messages.
void grow_file(int descriptor, const std::string& name, uint64_t size, uint64_t grown);

}  // namespace lane
