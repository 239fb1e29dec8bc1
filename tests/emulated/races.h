// Who knows of whose accesses: what orders threads, and the copies and products beside them.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "runtime.h"

namespace emulated {

// Times by actor: a thread, or what runs beside threads; 0 is the launch before. Short ones go on
// with zeros.
using Times = std::vector<u32>;

// Until when an actor's accesses are known to have happened before.
struct Knowledge {
    Times seen;
    Times published;                                       // and are visible to copies and products
    std::map<u32, std::shared_ptr<const Times>> clusters;  // of other clusters of this launch
    void join(const Knowledge& other);
};
using Known = std::shared_ptr<const Knowledge>;

// Lanes mostly learn the same thing, and know the same before: what the last one came to know.
struct Learned {
    Known before, what, after;
};

// What a thread is to the others.
struct Actor {
    u32 id = 0, time = 1;  // time ends with each release
    Known known;
    u32 copier = 0, copied = 1;  // its cp.async, and the time of the next
    u32 awaited = 0;             // of them, until when
    std::vector<u32> groups;     // time of the last copy of each
};

// What is passed on: by those that arrive, to those that wait once all have.
struct Passed {
    std::shared_ptr<Knowledge> pending;
    Known done;
    Known last;      // joined last
    u32 copier = 0;  // of copies that complete here
    mutable Learned learned;
    std::vector<bool> users;  // of an mbarrier, by actor
};

// The products of a warpgroup.
struct Reader {
    u32 id = 0, groups = 0;
    Learned learned;  // that these groups have ended
};

namespace races {
// Launches that may overlap; global memory lies between each pair of `n`, in order.
void begin_list(const u64* pairs, int n);
void begin_launch(bool overlaps);
void begin_cluster();
void end_cluster();
void begin_thread(Actor& actor, u32 id);

void release(Actor& from, Passed& to);
void complete(Passed& phase, bool forgets);  // all have arrived; later phases know of former ones
void acquire(Actor& to, const Passed& from);
void take(Actor& to, const Passed& from);  // the same, by one that has released to it
void publish(Actor& actor);                // what it knows of, to copies and products
void launch_before(Actor& actor);          // has ended
void exchange(Actor& actor, u64 address);  // release and acquire in any block, atomically

enum Kind : u8 { READ, WRITE, ATOMIC };
// A read `ahead` may be too early, if the thread learns of what it missed while it runs.
void access(Actor& actor, const void* at, u32 bytes, Kind kind, const void* code,
            bool ahead = false);

// Copies of 16 bytes by a thread; known of after the wait for their group, or an arrival.
void copy_begins(Actor& by, const void* from, u32 real, const void* to, u32 bytes,
                 const void* code);
void copy_group_ends(Actor& by);
void copies_awaited(Actor& by, u32 groups);  // the first of them
void copies_arrive(Actor& by, Passed& at);

// An mbarrier, by a thread that arrives or waits.
void uses(Actor& actor, Passed& barrier, const void* at, const void* code);

// A bulk copy, known of by those that wait where it completes; answers its time.
u32 bulk_begins(Actor& by, Passed& at, const void* barrier, const void* from, const void* to,
                u32 bytes, const void* code);
void bulk_ends(Passed& at, u32 time);

// What a product reads; known to have been read once its group is awaited.
void product_reads(Reader& reader, Actor* const (&by)[4], const void* at, u32 bytes, u32 group);
void products_awaited(Actor& by, Reader& reader, u32 groups);
}  // namespace races
}  // namespace emulated
