/* A writer and a checker of an LMDB, whose pages are a map of the file.
 *
 * lmdb write FOLDER FLAGS FROM: commits transactions FROM + 1, FROM + 2, ... and prints each number
 * once LMDB has acknowledged it. lmdb check FOLDER FLAGS: checks each record, and prints the last
 * transaction. FLAGS: 0, or w for MDB_WRITEMAP. */
#include <lmdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 64, LONGEST = 6000 };
/* The keys: transactions from 1 on, then records that are overwritten repeatedly. */
static const uint64_t SLOT = 1ull << 40, LAST = 1ull << 41;

static void need(int code, const char *what) {
    if (code) {
        fprintf(stderr, "%s: %s\n", what, mdb_strerror(code));
        exit(1);
    }
}

static void wrong(const char *what, uint64_t key) {
    fprintf(stderr, "%s: record %llu\n", what, (unsigned long long)key);
    exit(1);
}

/* The content of transaction n. */
static MDB_val content(uint64_t n) {
    static uint64_t words[LONGEST / 8];
    uint64_t x = n * 0x9e3779b97f4a7c15ull + 1;
    for (size_t i = 0; i < LONGEST / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        words[i] = x;
    }
    return (MDB_val){8 + x % (LONGEST - 8), words};
}

static void put(MDB_txn *txn, MDB_dbi dbi, uint64_t key, MDB_val value) {
    need(mdb_put(txn, dbi, &(MDB_val){sizeof key, &key}, &value, 0), "put");
}

static void expect(MDB_txn *txn, MDB_dbi dbi, uint64_t key, uint64_t n) {
    MDB_val found, wanted = content(n);
    need(mdb_get(txn, dbi, &(MDB_val){sizeof key, &key}, &found), "get");
    if (found.mv_size != wanted.mv_size || memcmp(found.mv_data, wanted.mv_data, found.mv_size))
        wrong("wrong content", key);
}

static void write_on(MDB_env *env, uint64_t n) {
    for (;; n++) {
        MDB_txn *txn;
        MDB_dbi dbi;
        need(mdb_txn_begin(env, NULL, 0, &txn), "begin");
        need(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &dbi), "open");
        put(txn, dbi, n, content(n));
        put(txn, dbi, SLOT + n % SLOTS, content(n));
        put(txn, dbi, LAST, (MDB_val){sizeof n, &n});
        need(mdb_txn_commit(txn), "commit");
        printf("%llu\n", (unsigned long long)n);
        fflush(stdout);
    }
}

static void check(MDB_env *env) {
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_val found;
    MDB_stat stat;
    uint64_t key = LAST, last = 0;
    need(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
    int code = mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &dbi);
    if (!code)
        code = mdb_get(txn, dbi, &(MDB_val){sizeof key, &key}, &found);
    if (code != MDB_NOTFOUND) {
        need(code, "last");
        memcpy(&last, found.mv_data, sizeof last);
        for (uint64_t n = 1; n <= last; n++)
            expect(txn, dbi, n, n);
        uint64_t slots = last < SLOTS ? last : SLOTS;
        for (uint64_t n = last; n > last - slots; n--)
            expect(txn, dbi, SLOT + n % SLOTS, n);
        need(mdb_stat(txn, dbi, &stat), "stat");
        if (stat.ms_entries != last + slots + 1)
            wrong("records that nobody wrote", stat.ms_entries);
    }
    mdb_txn_abort(txn);
    printf("%llu\n", (unsigned long long)last);
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    MDB_env *env;
    need(mdb_env_create(&env), "create");
    need(mdb_env_set_mapsize(env, 256 << 20), "mapsize");
    need(mdb_env_open(env, argv[2], *argv[3] == 'w' ? MDB_WRITEMAP : 0, 0644), "open");
    if (!strcmp(argv[1], "write") && argc == 5)
        write_on(env, strtoull(argv[4], NULL, 10) + 1);
    else
        check(env);
    mdb_env_close(env);
    return 0;
}
