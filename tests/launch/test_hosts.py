"""Host files, and the addresses that the hosts of a job use for each other."""

import tempfile
import unittest
from unittest import mock

import support  # noqa: F401, makes the launcher's modules known

from paceline_launch import UsageError, hosts
from paceline_launch.environment import find_mode
from paceline_launch.hosts import Host, parse_host, read_host_file, resolve, ssh_command


class HostFile(unittest.TestCase):
    def read(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as file:
            file.write(text)
            file.flush()
            return read_host_file(file.name)

    def test_lines(self):
        for line, host in {
            "alpha": Host("alpha"),
            "10.0.0.1:2222": Host("10.0.0.1", port=2222),
            "me@alpha.example.org:22": Host("alpha.example.org", "me", 22),
            "alpha slots=4": Host("alpha"),
            "alpha slots = 4 max_slots=8": Host("alpha"),
            "fd00::1": Host("fd00::1"),
            "me@[fd00::1]:2200": Host("fd00::1", "me", 2200),
        }.items():
            with self.subTest(line=line):
                self.assertEqual(parse_host(line), host)

    def test_file(self):
        text = "# the cluster\n\n  alpha  # fast\n\tme@beta:2222 slots=2\nalpha\n"
        self.assertEqual(self.read(text), [Host("alpha"), Host("beta", "me", 2222), Host("alpha")])

    def test_mistakes_name_the_line(self):
        for line in (
            "-oProxyCommand=x",
            "a b",
            "alpha:port",
            "alpha:99999",
            "alpha:",
            "@alpha",
            "slots=4",
            "a;b",
            "a@-b",
        ):
            with self.subTest(line=line), self.assertRaisesRegex(UsageError, r"\.hosts, line 2: '"):
                self.read(f"alpha\n{line}\n")

    def test_empty_and_missing(self):
        with self.assertRaisesRegex(UsageError, "names no host"):
            self.read("# nobody\n\n")
        with self.assertRaisesRegex(UsageError, "/nowhere/hosts cannot be read: No such file"):
            read_host_file("/nowhere/hosts")
        with self.assertRaisesRegex(UsageError, "cannot be read: Is a directory"):
            read_host_file("/")


class Addresses(unittest.TestCase):
    def resolve(self, numeric, own="10.0.0.9"):
        names = [Host(name) for name in numeric]
        with (
            mock.patch.object(hosts, "_configured_name", lambda host, options: host.name),
            mock.patch.object(hosts, "_numeric", lambda name: numeric.get(name, "")),
            mock.patch.object(hosts, "_own_address_towards", lambda address: f"{own}>{address}"),
        ):
            found, own_address = resolve(names, [])
        return [host.address for host in found], own_address

    def test_names_become_numbers(self):
        self.assertEqual(
            self.resolve({"a": "10.0.0.1", "b": "10.0.0.2"}), (["10.0.0.1", "10.0.0.2"], "10.0.0.9>10.0.0.1")
        )

    def test_this_machine_among_others(self):
        # Debian's /etc/hosts maps the own name to 127.0.1.1, which the other hosts would take for themselves.
        addresses, own = self.resolve({"here": "127.0.1.1", "b": "10.0.0.2"})
        self.assertEqual((addresses, own), (["10.0.0.9>10.0.0.2", "10.0.0.2"], "10.0.0.9>10.0.0.2"))

    def test_loopback_only(self):
        self.assertEqual(self.resolve({"a": "127.0.0.2", "b": "127.0.0.3"})[0], ["127.0.0.2", "127.0.0.3"])

    def test_known_to_ssh_only(self):
        self.assertEqual(self.resolve({"a": "10.0.0.1", "behind": ""})[0], ["10.0.0.1", "behind"])
        with self.assertRaisesRegex(UsageError, "--host-ip"):
            self.resolve({"behind": ""})

    def test_own_address(self):
        self.assertEqual(resolve([Host("127.0.0.2")], [])[1], "127.0.0.1")
        self.assertEqual(resolve([Host("127.0.0.2")], [], "192.0.2.1")[1], "192.0.2.1")


class SshCommand(unittest.TestCase):
    def test_options_of_the_user_come_first(self):
        command = ssh_command(Host("alpha", "me", 2222), ["-F", "config", "-o", "ConnectTimeout=1"], 60)
        self.assertLess(command.index("ConnectTimeout=1"), command.index("ConnectTimeout=10"))
        self.assertEqual(command[-2:], ["--", "me@alpha"])
        self.assertIn("BatchMode=yes", command)
        self.assertEqual(command[command.index("-p") + 1], "2222")


class ModeOfTheCommand(unittest.TestCase):
    def test_where_it_is_found(self):
        for command, variables, text in (
            (["mnist", "--kvstore", "dist_sync"], {"PACELINE_KVSTORE": "ring"}, "dist_sync"),
            (["mnist", "-kvstore=dist_async:bound=4"], {}, "dist_async:bound=4"),
            (["mnist --kvstore local"], {}, "local"),
            (["mnist"], {"PACELINE_KVSTORE": "ring"}, "ring"),
            (["train", "dist_async:bound=4", "data"], {"PACELINE_KVSTORE": "ring"}, "dist_async:bound=4"),
            (["dist_train", "my_dist_sync", "dist_sync.manifest"], {}, ""),
            (["train", "local", "data"], {}, "local"),
            (["train", "gossip:steps=4", "data"], {}, "gossip:steps=4"),
            (["train", "data", "local"], {}, ""),
            (["train", "dist_device_sync", "data"], {}, "dist_device_sync"),
            (["train", "nccl", "data"], {}, "nccl"),
            (["mnist", "--kvstore"], {}, ""),
            (["mnist 'unclosed"], {}, ""),
        ):
            with self.subTest(command=command):
                self.assertEqual(find_mode(command, variables).text, text)

    def test_what_it_means(self):
        self.assertTrue(find_mode(["x", "--kvstore", "dist_async:bound=4"], {}).survives_worker_loss)
        for mode in "ring", "gossip:steps=4":
            self.assertTrue(find_mode(["x", "--kvstore", mode], {}).survives_worker_loss)
            self.assertTrue(find_mode(["x", "--kvstore", mode], {}).without_servers)
        self.assertFalse(find_mode(["x", "--kvstore", "ring"], {}).one_process)
        for mode in "local", "device", "nccl":
            self.assertTrue(find_mode(["x", "--kvstore", mode], {}).one_process)
        self.assertFalse(find_mode(["x"], {}).survives_worker_loss)


if __name__ == "__main__":
    unittest.main()
