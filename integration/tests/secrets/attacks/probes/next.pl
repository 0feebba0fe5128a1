# Leaves resources that can outlive a process in a container, and looks for them. With the argument `look`, only looks
# for them. Prints one line for each resource: "NAME: there" or "NAME: not there".
use strict;
use warnings;
use Socket;
use POSIX ();

my $key = 4711;
my $inotify_init1 = (POSIX::uname())[4] eq "aarch64" ? 26 : 294;
my @kept;

sub socket_of {
    my ($family, $address, $act) = @_;
    socket(my $socket, $family, SOCK_STREAM, 0) or die "socket: $!";
    return $act eq "connect" ? connect($socket, $address) : bind($socket, $address) && listen($socket, 5) && push(@kept, $socket);
}

my $port = sockaddr_in($key, INADDR_LOOPBACK);
my $name = pack("Sa*", AF_UNIX, "\0left");

# Instances of inotify, which the kernel counts for each user.
sub watchers {
    my $count = 0;
    while ($count < 1000) {
        my $watcher = syscall($inotify_init1, 0);
        last if $watcher < 0;
        push @kept, $watcher;
        $count++;
    }
    return $count;
}

sub leave {
    defined shmget($key, 4096, 0666 | 01000) or die "shmget: $!";
    defined msgget($key, 0666 | 01000) or die "msgget: $!";
    defined semget($key, 1, 0666 | 01000) or die "semget: $!";
    for my $file ("/dev/shm/left", "/dev/mqueue/left", "/tmp/left", "/run/left") {
        open(my $left, ">", $file) or die "$file: $!";
    }
    socket_of(AF_INET, $port, "listen") or die "port: $!";
    socket_of(AF_UNIX, $name, "listen") or die "name: $!";
    for (1 .. 20) {
        next if fork;
        POSIX::setsid();
        $SIG{$_} = "IGNORE" for qw(TERM HUP INT);
        sleep 1000 while 1;
    }
    my $watchers = watchers();
    die "$watchers watchers" if $watchers < 10;
}

sub look {
    my @files = ("/dev/shm/left", "/dev/mqueue/left", "/tmp/left", "/run/left");
    my $processes = grep { /\/\d+$/ } glob("/proc/*");
    my %there = (
        "shared memory" => defined shmget($key, 0, 0),
        "messages" => defined msgget($key, 0),
        "semaphores" => defined semget($key, 0, 0),
        "port" => socket_of(AF_INET, $port, "connect"),
        "name of a socket" => socket_of(AF_UNIX, $name, "connect"),
        "processes" => $processes > 2,
        "watchers" => watchers() < 10,
        map { $_ => -e $_ } @files,
    );
    print "$_: ", ($there{$_} ? "there" : "not there"), "\n" for sort keys %there;
}

leave() if $ARGV[0] eq "leave";
look();
