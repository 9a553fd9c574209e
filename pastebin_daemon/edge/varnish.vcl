# Varnish in front of pastebin-daemon. Needs Varnish 6.6 or newer (std.ban); no parameter has to differ from its default.
#
#   varnishd -a :6081 -f FILE
#
# and in the daemon's configuration: [edge] driver = "varnish", [edge.varnish] endpoint = "http://127.0.0.1:6081"

vcl 4.1;

import std;

backend default {
    .host = "@BACKEND_HOST@";
    .port = "@BACKEND_PORT@";
    .connect_timeout = 3s;
    .first_byte_timeout = 30s;
    .between_bytes_timeout = 30s;
}

# Who may ban: the daemon, on this machine. Add its address when it runs on another one.
acl purgers {
    "127.0.0.1";
    "::1";
}

sub vcl_recv {
    if (req.method == "BAN") {
        # Behind a TLS proxy on this machine every visitor comes from 127.0.0.1. Varnish has put the sender's address
        # at the end of X-Forwarded-For: a list of two or more was forwarded, so it's not the daemon's own request. A
        # proxy that sets no X-Forwarded-For must refuse BAN itself.
        if (client.ip !~ purgers || req.http.X-Forwarded-For ~ ",") {
            return (synth(403, "Not a purger"));
        }
        # What passes here becomes a part of a regular expression.
        if (req.http.Cache-Tag !~ "^[A-Za-z0-9-]+(\|[A-Za-z0-9-]+)*$") {
            return (synth(400, "Not tags"));
        }
        # Only obj.*: bans that ask for req.* can't be worked off by the lurker, and their list would grow for ever.
        if (!std.ban("obj.http.Cache-Tag ~ (^|[,\s])(" + req.http.Cache-Tag + ")([,\s]|$)")) {
            std.log("ban refused: " + std.ban_error());
            return (synth(500, "Ban refused"));
        }
        return (synth(200, "Banned"));
    }
}

# A lifetime runs from the origin's word, but Varnish counts from the answer's arrival (RFC 9111, 4.2.3 adds the time that
# the answer took). Without this an answer that was slow on its way would be served past the paste's expiry.
sub vcl_backend_fetch {
    set bereq.http.X-Asked = std.time2real(now, 0.0);
}

sub vcl_backend_response {
    set beresp.ttl = beresp.ttl - (now - std.time(bereq.http.X-Asked, now));
}
