package bkspark.interop;

import org.apache.bookkeeper.auth.AuthCallbacks.GenericCallback;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.proto.ClientConnectionPeer;

/** An authentication that shows a token: what a client sends first to bookies of which it expects one. */
public final class TokenAuth implements ClientAuthProvider.Factory {
    @Override
    public void init(ClientConfiguration configuration) {}

    @Override
    public String getPluginName() {
        return "bkspark-token";
    }

    @Override
    public ClientAuthProvider newProvider(ClientConnectionPeer connection, GenericCallback<Void> complete) {
        return new ClientAuthProvider() {
            @Override
            public void init(GenericCallback<AuthToken> send) {
                send.operationComplete(BKException.Code.OK, AuthToken.wrap("a token".getBytes()));
            }

            @Override
            public void process(AuthToken answer, GenericCallback<AuthToken> send) {
                complete.operationComplete(BKException.Code.OK, null);
            }
        };
    }
}
