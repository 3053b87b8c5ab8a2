/* An engine for fio that runs its jobs on a volume of lanefs, inside of fio's own process.
 *
 * A volume has one opener. So the first job that is set up opens it for all jobs that name it, and
 * the last job that ends closes it. Jobs must be threads of one process for that.
 *
 * fio lays files out with its own open(2) and write(2). To fio this engine has no disk
 * (FIO_DISKLESSIO), so it lays them out itself, by the same rules, when fio passes the sizes
 * (prepopulate_file).
 *
 * Direct reads and writes of a job with an iodepth above 1 are queued until fio waits for a result,
 * which it does when the queue is full: then all go in one call. All other I/O is complete when
 * queue returns. fio times both kinds correctly if it knows which a request is: the flag
 * FIO_SYNCIO, of which each job has a copy, says so for the request at hand.
 */
#define _GNU_SOURCE
#include "fio.h"
#include "optgroup.h"
#include <errno.h>
#include <fcntl.h>
#include <lanefs.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct options {
    void *pad; /* fio's */
    char *volume;
    char *mount_options;
    unsigned int uncached;
};

static struct fio_option options[] = {
    {
        .name = "volume",
        .lname = "lanefs volume",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct options, volume),
        .help = "File or block device that holds the volume, or pmem:FILE",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "mount_options",
        .lname = "lanefs mount options",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct options, mount_options),
        .help = "Words as after mount -o: dioread_lock,nodelalloc,locking=range,overwrite=journal,...",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "uncached",
        .lname = "Uncached",
        .type = FIO_OPT_BOOL,
        .off1 = offsetof(struct options, uncached),
        .help = "Large reads and writes bypass the page cache",
        .def = "0",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = NULL,
    },
};

/* The open volumes. */
struct volume {
    struct volume *next;
    struct lanefs_volume *handle;
    unsigned int jobs;
    char *name;
    char *mount_options;
};

/* The state of a job. */
struct job {
    struct volume *volume;
    /* Queued requests, and their io_u. */
    struct lanefs_io *ios;
    struct io_u **waiting;
    unsigned int waits;
    /* Completed requests: fio knows `told` of them, the last ones as the events from `events` on.
     * */
    struct io_u **done;
    unsigned int dones, told, events;
};

static pthread_mutex_t volumes_lock = PTHREAD_MUTEX_INITIALIZER;
static struct volume *volumes;

static int same(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

static int failed(struct thread_data *td, const char *what, const char *name)
{
    int error = errno;

    log_err("lanefs: %s %s: %s\n", what, name, lanefs_last_error());
    td_verror(td, error, what);
    return error;
}

static void free_volume(struct volume *v)
{
    free(v->name);
    free(v->mount_options);
    free(v);
}

/* Opens the volume of a job, with the list locked. */
static struct volume *open_volume(struct thread_data *td, const struct options *o)
{
    struct volume *v = calloc(1, sizeof(*v));

    if (!v) {
        td_verror(td, ENOMEM, "volume");
        return NULL;
    }
    v->name = strdup(o->volume);
    v->mount_options = strdup(o->mount_options ? o->mount_options : "");
    if (!v->name || !v->mount_options) {
        td_verror(td, ENOMEM, "volume");
        free_volume(v);
        return NULL;
    }
    v->handle = lanefs_open_volume(v->name, v->mount_options);
    if (!v->handle) {
        failed(td, "cannot open", v->name);
        free_volume(v);
        return NULL;
    }
    v->next = volumes;
    volumes = v;
    return v;
}

/* Returns the volume of a job, and opens it if no other job has. */
static struct volume *take_volume(struct thread_data *td)
{
    const struct options *o = td->eo;
    struct volume *v;

    pthread_mutex_lock(&volumes_lock);
    for (v = volumes; v; v = v->next)
        if (same(v->name, o->volume))
            break;
    if (v && !same(v->mount_options, o->mount_options)) {
        log_err("lanefs: %s: jobs on one volume have the same mount_options\n", o->volume);
        td_verror(td, EINVAL, "mount_options");
        v = NULL;
    } else if (!v) {
        v = open_volume(td, o);
    }
    if (v)
        v->jobs++;
    pthread_mutex_unlock(&volumes_lock);
    return v;
}

static int close_volume(struct volume *v)
{
    int ret = lanefs_close_volume(v->handle);

    if (ret)
        log_err("lanefs: cannot close %s: %s\n", v->name, lanefs_last_error());
    free_volume(v);
    return ret;
}

static void free_job(struct job *job)
{
    free(job->ios);
    free(job->waiting);
    free(job->done);
    free(job);
}

static struct job *make_job(struct thread_data *td)
{
    struct job *job = calloc(1, sizeof(*job));

    if (!job) {
        td_verror(td, ENOMEM, "job");
        return NULL;
    }
    job->ios = calloc(td->o.iodepth, sizeof(*job->ios));
    job->waiting = calloc(td->o.iodepth, sizeof(*job->waiting));
    job->done = calloc(td->o.iodepth, sizeof(*job->done));
    if (job->ios && job->waiting && job->done)
        job->volume = take_volume(td);
    else
        td_verror(td, ENOMEM, "job");
    if (job->volume)
        return job;
    free_job(job);
    return NULL;
}

static void engine_cleanup(struct thread_data *td)
{
    struct job *job = td->io_ops_data;
    struct volume *v, **at;

    td->io_ops_data = NULL;
    if (!job)
        return;
    v = job->volume;
    free_job(job);
    pthread_mutex_lock(&volumes_lock);
    if (--v->jobs == 0) {
        for (at = &volumes; *at != v; at = &(*at)->next)
            ;
        *at = v->next;
        if (close_volume(v))
            td_verror(td, EIO, "close");
    }
    pthread_mutex_unlock(&volumes_lock);
}

/* fio does not clean up jobs that were set up and never ran. */
static void __attribute__((destructor)) close_all(void)
{
    while (volumes) {
        struct volume *v = volumes;

        volumes = v->next;
        close_volume(v);
    }
}

static struct lanefs_volume *volume_of(struct thread_data *td)
{
    return ((struct job *)td->io_ops_data)->volume->handle;
}

static int engine_get_file_size(struct thread_data *td, struct fio_file *f)
{
    struct lanefs_stat st;

    if (fio_file_size_known(f))
        return 0;
    f->filetype = FIO_TYPE_FILE;
    f->real_file_size = 0;
    if (lanefs_stat(volume_of(td), f->file_name, &st) == 0)
        f->real_file_size = st.st_size;
    else if (errno != ENOENT)
        return failed(td, "cannot stat", f->file_name);
    fio_file_set_size_known(f);
    return 0;
}

/* Returns whether reads and writes of a job are queued. */
static int is_asynchronous(struct thread_data *td)
{
    return td->o.iodepth > 1 && td->o.odirect;
}

/* Says whether a request is complete when queue returns. */
static void set_synchronous(struct thread_data *td, int yes)
{
    const unsigned long long flag = (unsigned long long)FIO_SYNCIO << TD_ENG_FLAG_SHIFT;

    td->flags = yes ? td->flags | flag : td->flags & ~flag;
}

static int engine_setup(struct thread_data *td)
{
    const struct options *o = td->eo;
    struct fio_file *f;
    unsigned int i;

    if (!td->o.use_thread) {
        log_err("lanefs: jobs must be threads, for a volume has one opener: add thread=1\n");
        td_verror(td, EINVAL, "thread=1 is missing");
        return 1;
    }
    if (!o || !o->volume || !*o->volume) {
        log_err("lanefs: volume= names no volume\n");
        td_verror(td, EINVAL, "volume= is missing");
        return 1;
    }
    if (!td->io_ops_data)
        td->io_ops_data = make_job(td);
    if (!td->io_ops_data)
        return 1;
    set_synchronous(td, !is_asynchronous(td));
    for_each_file(td, f, i)
        if (engine_get_file_size(td, f))
            return 1;
    return 0;
}

/* Makes the directories of a path. */
static void make_dirs(struct thread_data *td, const char *path)
{
    char *copy = strdup(path), *slash = copy;

    while (copy && (slash = strchr(slash + 1, '/'))) {
        *slash = '\0';
        /* A failure here repeats, and is reported, when the file is made. */
        if (*copy)
            lanefs_mkdir(volume_of(td), copy, 0755);
        *slash = '/';
    }
    free(copy);
}

static struct lanefs_file *open_or_make(struct thread_data *td, const char *name, int flags)
{
    struct lanefs_file *file = lanefs_open(volume_of(td), name, flags, 0644);

    if (!file && errno == ENOENT && (flags & O_CREAT)) {
        make_dirs(td, name);
        file = lanefs_open(volume_of(td), name, flags, 0644);
    }
    return file;
}

static int allocate(struct thread_data *td, struct lanefs_file *file, int64_t size)
{
    switch (td->o.fallocate_mode) {
    case FIO_FALLOCATE_NONE:
        return 0;
    case FIO_FALLOCATE_KEEP_SIZE:
        return lanefs_fallocate(file, LANEFS_FALLOC_KEEP_SIZE, 0, size);
    case FIO_FALLOCATE_TRUNCATE:
        return lanefs_ftruncate(file, size);
    default:
        /* A file without extents, as on ext2 and ext3, gets its blocks when it is written. */
        return lanefs_fallocate(file, 0, 0, size) && errno != EOPNOTSUPP ? -1 : 0;
    }
}

/* Writes a whole file that is to be read or overwritten. */
static int lay_out(struct thread_data *td, struct lanefs_file *file, uint64_t size)
{
    uint64_t bs = td->o.max_bs[DDIR_WRITE], at;
    char *buf;
    int ret = 0;

    /* In large writes: many small ones would be slow, and the content is the same. */
    if (bs < 1 << 20)
        bs = (1 << 20) / bs * bs;
    buf = malloc(bs);
    if (!buf)
        return -1;
    for (at = 0; at < size && !td->terminate && !ret; at += bs) {
        if (bs > size - at)
            bs = size - at;
        fill_io_buffer(td, buf, bs, bs);
        ret = lanefs_pwrite(file, buf, bs, (int64_t)at) == (ssize_t)bs ? 0 : -1;
    }
    free(buf);
    return ret || td->terminate || !td->o.create_fsync ? ret : lanefs_fsync(file);
}

/* Lays out files that are smaller than the job wants, before it runs, as fio does. */
static int engine_prepopulate_file(struct thread_data *td, struct fio_file *f)
{
    uint64_t size = f->io_size + f->file_offset;
    int whole = td_read(td) || (td_write(td) && td->o.overwrite && !td->o.file_append);
    int anew = whole || !td->o.file_append;
    struct lanefs_file *file;
    int ret;

    if (size <= f->real_file_size || td->o.create_on_open || td->terminate)
        return 0;
    if (read_only) {
        log_err("lanefs: %s is to be made, and fio runs with --readonly\n", f->file_name);
        return 1;
    }
    if (anew && lanefs_unlink(volume_of(td), f->file_name) && errno != ENOENT)
        return failed(td, "cannot remove", f->file_name);
    file = open_or_make(td, f->file_name, td->o.allow_create ? O_WRONLY | O_CREAT : O_WRONLY);
    if (!file)
        return failed(td, "cannot make", f->file_name);
    ret = allocate(td, file, (int64_t)size);
    if (!ret && whole)
        ret = lay_out(td, file, size);
    if (ret)
        failed(td, "cannot lay out", f->file_name);
    else
        f->real_file_size = size;
    lanefs_close(file);
    /* It has its whole size already: the next job would take it for laid out. */
    if (anew && (ret || td->terminate))
        lanefs_unlink(volume_of(td), f->file_name);
    return ret;
}

static int engine_open_file(struct thread_data *td, struct fio_file *f)
{
    const struct options *o = td->eo;
    int flags = td->o.sync_io;
    struct lanefs_file *file;

    if (td->o.odirect)
        flags |= O_DIRECT;
    else if (o->uncached)
        flags |= LANEFS_O_UNCACHED;
    if (td_write(td) || td_trim(td)) {
        flags |= read_only ? O_RDONLY : O_RDWR;
        if (td->o.allow_create && !read_only)
            flags |= O_CREAT;
    } else if (td->o.create_on_open && td->o.allow_create) {
        flags |= O_RDWR | O_CREAT;
    } else {
        flags |= O_RDONLY;
    }
    file = open_or_make(td, f->file_name, flags);
    if (!file)
        return failed(td, "cannot open", f->file_name);
    FILE_SET_ENG_DATA(f, file);
    return 0;
}

static int engine_close_file(struct thread_data *td, struct fio_file *f)
{
    struct lanefs_file *file = FILE_ENG_DATA(f);

    FILE_SET_ENG_DATA(f, NULL);
    return lanefs_close(file) ? failed(td, "cannot close", f->file_name) : 0;
}

static int engine_unlink_file(struct thread_data *td, struct fio_file *f)
{
    return lanefs_unlink(volume_of(td), f->file_name) ? errno : 0;
}

/* Drops nothing: clean pages stay with the volume. direct=1 goes past them. */
static int engine_invalidate(struct thread_data *td, struct fio_file *f)
{
    return 0;
}

/* Submits the queued requests. */
static void run(struct job *job)
{
    unsigned int i;

    memmove(job->done, job->done + job->told, (job->dones - job->told) * sizeof(*job->done));
    job->dones -= job->told;
    job->told = 0;
    if (lanefs_listio(job->ios, (int)job->waits))
        log_err("lanefs: %s\n", lanefs_last_error());
    for (i = 0; i < job->waits; i++) {
        struct io_u *io_u = job->waiting[i];

        io_u->error = (unsigned int)job->ios[i].error;
        if (!io_u->error)
            io_u->resid = io_u->xfer_buflen - (unsigned long long)job->ios[i].done;
        job->done[job->dones++] = io_u;
    }
    job->waits = 0;
}

static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t)
{
    struct job *job = td->io_ops_data;
    unsigned int count;

    if (job->dones - job->told < min && job->waits)
        run(job);
    job->events = job->told;
    count = job->dones - job->told;
    if (count > max)
        count = max;
    job->told += count;
    return (int)count;
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
    struct job *job = td->io_ops_data;

    return job->done[job->events + (unsigned int)event];
}

/* Queues a request. */
static enum fio_q_status enqueue(struct thread_data *td, struct io_u *io_u)
{
    struct job *job = td->io_ops_data;

    if (job->waits == td->o.iodepth)
        return FIO_Q_BUSY;
    job->ios[job->waits] = (struct lanefs_io){
        .file = FILE_ENG_DATA(io_u->file),
        .opcode = io_u->ddir == DDIR_READ ? LANEFS_IO_READ : LANEFS_IO_WRITE,
        .buf = io_u->xfer_buf,
        .count = io_u->xfer_buflen,
        .offset = (int64_t)io_u->offset,
    };
    job->waiting[job->waits++] = io_u;
    return FIO_Q_QUEUED;
}

/* Carries out a request. Returns how many bytes, or -1 with errno. */
static int64_t transfer(struct io_u *io_u)
{
    struct lanefs_file *file = FILE_ENG_DATA(io_u->file);
    int64_t at = (int64_t)io_u->offset, len = (int64_t)io_u->xfer_buflen;

    switch (io_u->ddir) {
    case DDIR_READ:
        return lanefs_pread(file, io_u->xfer_buf, io_u->xfer_buflen, at);
    case DDIR_WRITE:
        return lanefs_pwrite(file, io_u->xfer_buf, io_u->xfer_buflen, at);
    case DDIR_TRIM:
        return lanefs_fallocate(file, LANEFS_FALLOC_PUNCH_HOLE | LANEFS_FALLOC_KEEP_SIZE, at, len) ? -1 : len;
    case DDIR_SYNC:
        return lanefs_fsync(file) ? -1 : len;
    case DDIR_DATASYNC:
    case DDIR_SYNC_FILE_RANGE:
        return lanefs_fdatasync(file) ? -1 : len;
    default:
        errno = EINVAL;
        return -1;
    }
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
    struct job *job = td->io_ops_data;
    int64_t done;

    fio_ro_check(td, io_u);
    if (is_asynchronous(td) && (io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE)) {
        set_synchronous(td, 0);
        return enqueue(td, io_u);
    }
    /* Earlier requests come first. */
    if (job->waits)
        run(job);
    if (!td_ioengine_flagged(td, FIO_SYNCIO)) {
        /* fio has not taken the time, and will not. */
        set_synchronous(td, 1);
        fio_gettime(&io_u->issue_time, NULL);
    }
    done = transfer(io_u);
    if (done < 0)
        io_u->error = failed(td, "I/O on", io_u->file->file_name);
    else
        io_u->resid = io_u->xfer_buflen - (unsigned long long)done;
    return FIO_Q_COMPLETED;
}

struct ioengine_ops ioengine = {
    .name = "lanefs",
    .version = FIO_IOOPS_VERSION,
    /* Threads that submit for a job have no state of it. */
    .flags = FIO_DISKLESSIO | FIO_NODISKUTIL | FIO_NO_OFFLOAD,
    .setup = engine_setup,
    .cleanup = engine_cleanup,
    .queue = engine_queue,
    .getevents = engine_getevents,
    .event = engine_event,
    .open_file = engine_open_file,
    .close_file = engine_close_file,
    .invalidate = engine_invalidate,
    .unlink_file = engine_unlink_file,
    .get_file_size = engine_get_file_size,
    .prepopulate_file = engine_prepopulate_file,
    .option_struct_size = sizeof(struct options),
    .options = options,
};
