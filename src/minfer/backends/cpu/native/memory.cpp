// Mappings in huge pages; what of them is advice may be ignored by the system.

#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace minfer {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kChunk = size_t{64} << 20;  // of a pool; untouched pages of it cost nothing

constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

Region::Region(size_t nbytes) : nbytes_(round_up(std::max<size_t>(nbytes, 1), kHuge)) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
    flags |= MAP_NORESERVE;
#endif
    void* raw = mmap(nullptr, nbytes_ + kHuge, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    auto* start = static_cast<uint8_t*>(raw);
    const auto address = reinterpret_cast<uintptr_t>(start);
    data_ = start + (round_up(address, kHuge) - address);
    if (data_ != start) munmap(start, data_ - start);
    uint8_t* end = start + nbytes_ + kHuge;
    if (data_ + nbytes_ != end) munmap(data_ + nbytes_, end - (data_ + nbytes_));
#if defined(MADV_HUGEPAGE)
    madvise(data_, nbytes_, MADV_HUGEPAGE);  // advice: a system without huge pages is only slower
#endif
}

Region::~Region() { munmap(data_, nbytes_); }

uint8_t* Pool::take(size_t nbytes) {
    nbytes = round_up(std::max<size_t>(nbytes, 1), 64);
    if (regions_.empty() || used_ + nbytes > regions_.back()->nbytes()) {
        regions_.push_back(std::make_unique<Region>(std::max(nbytes, kChunk)));
        used_ = 0;
    }
    uint8_t* start = regions_.back()->data() + used_;
    used_ += nbytes;
    taken_ += nbytes;
    return start;
}

void drop_file_pages(const void* data, size_t nbytes) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<uintptr_t>(data);
    const uintptr_t begin = round_up(address, page);
    const uintptr_t end = (address + nbytes) / page * page;
    // MADV_DONTNEED drops only this process's view of a shared, read-only file mapping.
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace minfer
