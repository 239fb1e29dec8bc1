// Finds accesses that nothing orders, whatever order they were emulated in.
//
// What orders the threads of a GPU: barriers of a block, a cluster and a warp, mbarriers, the
// atomics of a counter, waits for copies and products, the end of the launch before. Shuffles and
// products of a warp order nothing. Each sixteen bytes remember the accesses that no later one
// makes superfluous (C. Flanagan, S. Freund: FastTrack, PLDI 2009), and an access must know of all
// that it conflicts with. A copy or product, which reads and writes beside the threads, must also
// have had what threads wrote published to it (`fence.proxy.async`).
//
// Accesses are watched by the early schedule alone: what orders them does not depend on it.
//
// Two things that kernels do on purpose are no races. Blocks may write the same bytes to global
// memory. And what is loaded from the L2 cache (`__ldcg`) may be loaded before it is written, if
// the thread learns of the write, so that it can look again; that it does shows in results.
#include <algorithm>
#include <cstdio>
#include <dlfcn.h>
#include <string>
#include <unordered_map>

#include "state.h"

namespace emulated {

void Knowledge::join(const Knowledge& other) {
    auto most = [](Times& to, const Times& from) {
        if (to.size() < from.size()) to.resize(from.size());
        for (std::size_t i = 0; i < from.size(); i++) to[i] = std::max(to[i], from[i]);
    };
    most(seen, other.seen);
    most(published, other.published);
    for (const auto& [cluster, times] : other.clusters) {
        auto& mine = clusters[cluster];
        if (mine == times) continue;
        Times all = mine ? *mine : Times();
        most(all, *times);
        mine = std::make_shared<Times>(std::move(all));
    }
}

namespace races {
namespace {

struct Entry {
    const void* code;
    u32 launch, cluster, actor, time;
    u16 bytes;  // of the place, a bit each
    Kind kind;
    bool beside;  // through the asynchronous proxy, as bulk copies and products access memory
    bool again;   // wrote to global memory what another had written there in this launch
    bool ahead;   // read what may be too early
};
struct Place {
    u32 cluster = 0;  // of which shared memory this is, else 0
    std::vector<Entry> entries;
};
constexpr u32 PLACE = 16, PAGE = 256;  // bytes of a place, places of a page
constexpr u32 MOST_ENTRIES = 16;
using Page = std::array<Place, PAGE>;

// A thread's last write, from before it is done until something else happens.
struct Store {
    u64 address;
    u32 bytes = 0;
    Actor* by;
    Entry entry;
    u8 before[PLACE];
};

struct Range {
    u64 begin, end;
};

u32 launch_number, cluster_number, n_actors;  // clusters go on being numbered
Known at_start;
Learned end_of_before;
std::unordered_map<u64, std::unique_ptr<Page>> pages;
struct Found {
    u64 number = ~0ull;
    Page* page;
} found_pages[64];
Store store;
struct Doubt {  // whether a reader ahead comes to know of a write
    u64 address;
    Entry first, second;
};
std::vector<Doubt> doubts;
std::unordered_map<u64, Passed> counters;
std::vector<Range> ranges;  // of global memory, in order
Range last_range = {};      // where an address was found

u32 at(const Times& times, u32 actor) { return actor < times.size() ? times[actor] : 0; }
void set(Times& times, u32 actor, u32 time) {
    if (times.size() <= actor) times.resize(actor + 1);
    times[actor] = std::max(times[actor], time);
}
u32 id_of(u32& actor) {
    if (!actor) actor = n_actors++;
    return actor;
}

bool in_window(u64 address) {
    return address - (u64)window < launch.cluster * SPAN;
}
bool in_memory(u64 address) {
    if (address - last_range.begin < last_range.end - last_range.begin) return true;
    auto next = std::upper_bound(ranges.begin(), ranges.end(), address,
                                 [](u64 a, const Range& r) { return a < r.begin; });
    if (next == ranges.begin() || address >= next[-1].end) return false;
    last_range = next[-1];
    return true;
}

Place& place_at(u64 address) {
    u64 number = address / (PLACE * PAGE);
    Found& found = found_pages[number % 64];
    if (found.number != number) {
        auto& page = pages[number];
        if (!page) page = std::make_unique<Page>();
        found = {number, page.get()};
    }
    return (*found.page)[address / PLACE % PAGE];
}

// Whether `by`, or what it begins, comes after an access.
bool knows(const Actor& by, const Entry& e, bool beside) {
    if (e.launch != launch_number) return at(by.known->seen, 0);
    if (e.cluster != cluster_number) {
        auto found = by.known->clusters.find(e.cluster);
        return found != by.known->clusters.end() && at(*found->second, e.actor) >= e.time;
    }
    bool published = !beside || e.beside || e.kind == READ;
    if (published && e.actor == by.id) return true;
    if (published && e.actor == by.copier && by.awaited >= e.time) return true;
    return at(published ? by.known->seen : by.known->published, e.actor) >= e.time;
}

std::string name_of(const Entry& e) {
    if (e.launch != launch_number) return "an earlier launch";
    u32 n = blockDim.x, i = e.actor - 1;
    std::string name = i < n * launch.cluster ? "thread " + std::to_string(i % n)
                                              : "a copy or product";
    if (e.cluster != cluster_number) return name + " of another block";
    return launch.cluster == 1 || i >= n * launch.cluster
               ? name
               : name + " of rank " + std::to_string(i / n);
}

std::string place_of(const void* code) {
    Dl_info info;
    if (!code || !dladdr(code, &info)) return "";
    char text[600];
    std::snprintf(text, sizeof(text), " at [%s+%#llx]", info.dli_fname,
                  (u64)code - (u64)info.dli_fbase - 1);
    return text;
}

[[noreturn]] void tell(u64 address, const Entry& first, const Entry& second) {
    static const char* const verbs[] = {"read", "written", "counted in"};
    bool shared = in_window(address);
    fail("%s memory at %#llx is %s by %s%s and %s by %s%s, and nothing orders them",
         shared ? "shared" : "global", shared ? (address - (u64)window) % SPAN : address,
         verbs[first.kind], name_of(first).c_str(), place_of(first.code).c_str(),
         verbs[second.kind], name_of(second).c_str(), place_of(second.code).c_str());
}

// Whether all of an entry's bytes were written in this launch, in no order with it.
template <class Knows>
bool written(const Place& place, const Entry& by, const Knows& knows) {
    u16 missing = by.bytes;
    for (const Entry& e : place.entries)
        if (e.kind == WRITE && e.launch == by.launch && !knows(e)) missing &= ~e.bytes;
    return !missing;
}

// Nothing orders these two, but it does not matter: some who are not in order write the same bytes,
// and a third knows of one of them.
template <class Knows>
bool forgiven(const Place& place, const Entry& first, const Entry& second, const Knows& knows) {
    if (second.again) return true;
    if (second.kind != READ || first.kind != WRITE) return false;
    u16 missing = first.bytes & second.bytes;
    for (const Entry& e : place.entries)
        if (e.kind == WRITE && (e.again || first.again) && &e != &first && knows(e))
            missing &= ~e.bytes;
    return !missing;
}

// Where many read or count there is room for some of them: who writes in no order with others is in
// none with most of them.
void add(Place& place, const Entry& entry) {
    static u32 state = 1;
    if (entry.kind != WRITE && place.entries.size() >= MOST_ENTRIES) {
        state = state * 1664525 + 1013904223;
        Entry& other = place.entries[(state >> 16) % place.entries.size()];
        if (other.kind == entry.kind) other = entry;
    } else {
        place.entries.push_back(entry);
    }
}

// An access of `access` to some bytes, begun by all of `by`.
void record(u64 address, u32 bytes, const Entry& access, Actor* const* by, int n_by) {
    bool shared = in_window(address);
    if (launch.late || (!shared && !in_memory(address))) return;
    auto all_know = [&](const Entry& e) {
        for (int i = 0; i < n_by; i++)
            if (!knows(*by[i], e, access.beside)) return false;
        return true;
    };
    Entry mine = access;
    for (u64 next, end = address + bytes; address < end; address = next) {
        u64 begin = address / PLACE * PLACE;
        next = begin + PLACE;
        u32 from = address - begin, to = std::min(end, next) - begin;
        mine.bytes = (1u << to) - (1u << from);
        Place& place = place_at(begin);
        if (shared && place.cluster != cluster_number) {
            place.entries.clear();
            place.cluster = cluster_number;
        }
        mine.again = access.again && written(place, mine, all_know);
        std::size_t kept = 0;
        bool there = false;
        for (std::size_t i = 0; i < place.entries.size(); i++) {
            const Entry& e = place.entries[i];
            if (e.bytes & mine.bytes) {
                if (e.actor == mine.actor && e.time == mine.time && e.kind == mine.kind &&
                    e.bytes == mine.bytes && e.cluster == mine.cluster &&
                    e.launch == mine.launch) {
                    there = true;
                    place.entries[kept++] = e;
                    continue;
                }
                bool conflict = e.kind != mine.kind || e.kind == WRITE;
                bool covered = !(e.bytes & ~mine.bytes);
                bool known = (conflict || covered) && all_know(e);
                if (conflict && !known && !forgiven(place, e, mine, all_know)) {
                    bool ahead = mine.ahead || (e.ahead && e.cluster == cluster_number);
                    if (!ahead) tell(begin, e, mine);
                    doubts.push_back({begin, e, mine});
                }
                if (known && covered && (mine.kind == WRITE || mine.kind == e.kind)) continue;
            }
            place.entries[kept++] = e;
        }
        place.entries.resize(kept);
        if (!there) add(place, mine);
    }
}

// What was a thread's last write is one now.
void end_store() {
    if (!store.bytes) return;
    store.entry.again = !in_window(store.address) && store.bytes <= PLACE &&
                        !std::memcmp((const void*)store.address, store.before, store.bytes);
    u32 bytes = store.bytes;
    store.bytes = 0;
    record(store.address, bytes, store.entry, &store.by, 1);
}

Entry entry(u32 actor, u32 time, Kind kind, bool beside, const void* code) {
    return {code, launch_number, cluster_number, actor, time, 0, kind, beside, false, false};
}

void know(Actor& actor, Knowledge&& all) {
    actor.known = std::make_shared<Knowledge>(std::move(all));
}

// `add` adds `what` to what is known.
template <class Add>
void learn(Actor& actor, Learned& last, const Known& what, const Add& add) {
    if (last.before != actor.known || last.what != what || !last.after) {
        Knowledge all = *actor.known;
        add(all);
        last = {actor.known, what, std::make_shared<Knowledge>(std::move(all))};
    }
    actor.known = last.after;
}

// What a thread itself did until now.
void set_own(Times& times, Actor& actor) {
    set(times, actor.id, actor.time++);
    if (actor.awaited) set(times, actor.copier, actor.awaited);
}

}  // namespace

void begin_list(const u64* pairs, int n) {
    ranges.clear();
    for (int i = 0; i < n; i++) ranges.push_back({pairs[2 * i], pairs[2 * i + 1]});
    last_range = {};
    pages.clear();
    for (Found& found : found_pages) found = {};
}

void begin_launch(bool overlaps) {
    launch_number++;
    store.bytes = 0, doubts.clear();  // of a launch that failed
    counters.clear();
    Knowledge start;
    set(start.seen, 0, overlaps ? 0 : 1);
    at_start = std::make_shared<Knowledge>(std::move(start));
    end_of_before = {};
}

void begin_cluster() {
    cluster_number++;
    n_actors = 1 + blockDim.x * launch.cluster;
}

void end_cluster() {
    end_store();
    for (const Doubt& doubt : doubts) {
        const Entry &first = doubt.first, &second = doubt.second;
        const Entry &read = first.ahead ? first : second, &write = first.ahead ? second : first;
        const Actor& reader = threads[read.actor - 1].actor;
        auto knows_of = [&](const Entry& e) { return knows(reader, e, false); };
        if (!knows_of(write) && !forgiven(place_at(doubt.address), write, read, knows_of))
            tell(doubt.address, first, second);
    }
    doubts.clear();
}

void begin_thread(Actor& actor, u32 id) {
    actor = {};
    actor.id = id, actor.known = at_start;
}

void release(Actor& from, Passed& to) {
    if (launch.late) return;
    end_store();
    if (!to.pending) to.pending = std::make_shared<Knowledge>(*from.known);
    else if (to.last != from.known) to.pending->join(*from.known);
    to.last = from.known;
    set_own(to.pending->seen, from);
}

void complete(Passed& phase, bool forgets) {
    if (!phase.pending) return;
    if (!forgets && phase.done) phase.pending->join(*phase.done);
    phase.done = std::move(phase.pending);
    phase.pending = nullptr, phase.last = nullptr;
}

void acquire(Actor& to, const Passed& from) {
    if (launch.late) return;
    end_store();
    if (!from.done) return;
    learn(to, from.learned, from.done, [&](Knowledge& all) { all.join(*from.done); });
}

void take(Actor& to, const Passed& from) {
    if (!launch.late) to.known = from.done;
}

void publish(Actor& actor) {
    end_store();
    Knowledge all = *actor.known;
    set_own(all.seen, actor);
    all.published = all.seen;
    know(actor, std::move(all));
}

void launch_before(Actor& actor) {
    end_store();
    if (at(actor.known->seen, 0)) return;
    learn(actor, end_of_before, nullptr, [](Knowledge& all) { set(all.seen, 0, 1); });
}

void exchange(Actor& actor, u64 address) {
    end_store();
    Passed& counter = counters[address];
    Knowledge all = *actor.known;
    if (counter.done) all.join(*counter.done);
    if (auto mine = all.clusters.find(cluster_number); mine != all.clusters.end()) {
        Knowledge own;
        own.seen = *mine->second;
        all.clusters.erase(mine);
        all.join(own);
    }
    know(actor, Knowledge(all));
    set_own(all.seen, actor);
    // to other clusters it is one of theirs
    Knowledge passed;
    passed.clusters = std::move(all.clusters);
    passed.clusters[cluster_number] = std::make_shared<Times>(std::move(all.seen));
    counter.done = std::make_shared<Knowledge>(std::move(passed));
}

void access(Actor& actor, const void* at, u32 bytes, Kind kind, const void* code, bool ahead) {
    if ((u64)at - (u64)current->stack < STACK) return;
    end_store();
    if (!in_window((u64)at) && !in_memory((u64)at)) return;
    Actor* by[] = {&actor};
    Entry mine = entry(actor.id, actor.time, kind, false, code);
    mine.ahead = ahead;
    if (kind != WRITE) return record((u64)at, bytes, mine, by, 1);
    store.address = (u64)at, store.bytes = bytes, store.by = &actor, store.entry = mine;
    std::memcpy(store.before, at, std::min(bytes, PLACE));
}

void copy_begins(Actor& by, const void* from, u32 real, const void* to, u32 bytes,
                 const void* code) {
    end_store();
    Actor* all[] = {&by};
    u32 id = id_of(by.copier);
    // not through the asynchronous proxy: what threads wrote need not be published
    record((u64)from, real, entry(id, by.copied, READ, false, code), all, 1);
    record((u64)to, bytes, entry(id, by.copied, WRITE, false, code), all, 1);
}

void copy_group_ends(Actor& by) { by.groups.push_back(by.copied++); }

void copies_awaited(Actor& by, u32 groups) {
    end_store();
    if (groups) by.awaited = std::max(by.awaited, by.groups[groups - 1]);
}

void copies_arrive(Actor& by, Passed& at) {
    if (!at.pending) at.pending = std::make_shared<Knowledge>();
    if (by.copier) set(at.pending->seen, by.copier, by.copied++);
}

// Recorded the first time: all that may conflict is what initialised it.
void uses(Actor& actor, Passed& barrier, const void* at, const void* code) {
    if (barrier.users.size() <= actor.id) barrier.users.resize(n_actors);
    if (!barrier.users[actor.id]) access(actor, at, 8, ATOMIC, code);
    barrier.users[actor.id] = true;
}

u32 bulk_begins(Actor& by, Passed& at, const void* barrier, const void* from, const void* to,
                u32 bytes, const void* code) {
    end_store();
    static u32 time;
    Actor* all[] = {&by};
    u32 id = id_of(at.copier);
    time++;
    record((u64)barrier, 8, entry(id, time, ATOMIC, true, code), all, 1);
    record((u64)from, bytes, entry(id, time, READ, true, code), all, 1);
    record((u64)to, bytes, entry(id, time, WRITE, true, code), all, 1);
    return time;
}

void bulk_ends(Passed& at, u32 time) {
    if (!at.pending) at.pending = std::make_shared<Knowledge>();
    set(at.pending->seen, at.copier, time);
}

void product_reads(Reader& reader, Actor* const (&by)[4], const void* at, u32 bytes, u32 group) {
    end_store();
    record((u64)at, bytes, entry(id_of(reader.id), group + 1, READ, true, nullptr), by, 4);
}

void products_awaited(Actor& by, Reader& reader, u32 groups) {
    end_store();
    if (!reader.id || at(by.known->seen, reader.id) >= groups) return;
    if (reader.groups != groups) reader.learned = {};
    reader.groups = groups;
    learn(by, reader.learned, nullptr, [&](Knowledge& all) { set(all.seen, reader.id, groups); });
}

}  // namespace races

}  // namespace emulated
